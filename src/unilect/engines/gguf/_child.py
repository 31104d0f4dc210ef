"""
The child that runs llama.cpp's server through xllamacpp. The only file that knows the library.

Source: https://github.com/xorbitsai/xllamacpp
"""

import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import xllamacpp

from unilect.engines.gguf._memory import (
    STEP,
    Needs,
    budget,
    memory_error,
    memory_warning,
    size_error,
)
from unilect.engines.process import child, trial
from unilect.runtime import memory
from unilect.runtime.memory import MIB, free_bytes, total_bytes

_GPU_BATCH = 2048
# tokens, as llama-server has them; on a CPU, where each that is drafted in vain takes its time, fewer
_NGRAM_DRAFT, _NGRAM_CPU, _MODEL_DRAFT = 48, 16, 3
# what a GPU's driver and library may take of the machine's memory while they run
_GPU_GROWS_BYTES = 8 * 2**30
_IMAGE_BYTES = 2 * 2**30  # a large picture, unpacked
#: A template for a model that has none that can be used; nobody chats with it.
_STAND_IN = "chatml"
_server: list[Any] = []  # kept alive until the process ends


class _Slot(msgspec.Struct):
    """A slot, as llama.cpp tells it."""

    speculative: bool = False


def serve(settings: dict[str, Any]) -> dict[str, Any]:
    """
    Start the server on the socket of the settings.

    Raises:
        ValueError: It cannot run so on this machine.
        RuntimeError: llama.cpp refuses; its reason is on stderr.
    """
    needs = msgspec.convert(settings["needs"], Needs)
    if has_gpu() and settings["gpu_layers"] != 0:
        needs = msgspec.structs.replace(needs, repacked=0)
    folder = Path(settings["socket_path"]).parent  # the parent removes it
    fault = settings["template_fault"]
    try:
        try_templates(settings["tried_templates"], settings["trial_model"], folder)
    except trial.TrialFailed as error:
        if settings["chat_template"]:  # the operator's choice
            raise ValueError(f"{settings['name']}: {_useless(error)}") from error
        fault = str(error)
    except trial.TrialError as error:
        raise ValueError(f"{settings['name']}: {_useless(error)}") from error
    warning = _check(settings, needs)
    needs = budget(
        needs,
        settings["cache_ram_mib"],
        free_bytes(),
        settings["engines"],
        settings["memory_bytes"],
    )
    chosen = parameters(settings, needs)
    if fault or settings["embedding"]:  # else the model's own would be used, and refused
        chosen.chat_template = _STAND_IN
    _server.append(xllamacpp.Server(chosen))
    if settings["speculative"]:
        _check_drafting(settings)
    own = _GPU_GROWS_BYTES if has_gpu() else 0
    images = _IMAGE_BYTES if settings["mmproj"] else 0
    return {
        "address": _server[0].listening_address,
        "devices": [str(device["description"]) for device in _gpus()],
        "warning": warning,
        "template_fault": fault,
        "build": _build(),
        "needs": msgspec.to_builtins(needs),
        # beside what is remembered, copies of a slot while it is changed
        "grows_bytes": needs.grows + 2 * (needs.slot + needs.checkpoint) + own + images,
    }


def try_templates(templates: Sequence[str], model: str, folder: Path) -> None:
    """
    Try chat templates, with a small model, as llama.cpp will use them with the model: it runs them while it loads, too.

    Args:
        folder: Where a trial that is killed may leave its socket.

    Raises:
        TrialFailed: llama.cpp cannot compile one.
        TrialError: One takes too long or too much.
    """
    for template in templates:
        try:
            trial.run_trial(partial(_converse, template, model, folder))
        except trial.TrialFailed as error:
            from unilect.templates.chat import unknown_word  # with Jinja; most templates are right

            raise trial.TrialFailed(unknown_word(template) or str(error)) from error


def _useless(error: trial.TrialError) -> str:
    return f"chat_template: llama.cpp cannot use it: {error}. Correct it, or leave `chat_template` out for the model's own."


def _converse(template: str, model: str, within: Path) -> None:
    """Hold the conversations of the trial with a small model."""
    socket = within / "trial.sock"  # nobody calls it
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.hostnames = [str(socket)]
    p.verbosity = 1
    p.ui = p.warmup = False
    p.use_jinja = True
    p.chat_template = template
    p.fit_params = False
    p.n_ctx, p.n_parallel, p.n_gpu_layers, p.cache_ram_mib = 256, 1, 0, 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(p)
    socket.unlink(missing_ok=True)
    for conversation in trial.conversations():
        with suppress(RuntimeError, ValueError):  # a template may refuse what is not for it
            server.handle_chat_completions(conversation | {"max_tokens": 1})


def _check(settings: dict[str, Any], needs: Needs) -> str:
    """
    Check that a model fits before it is loaded; returns a warning for the operator, empty where there is none.

    Raises:
        TooLargeError: It can never fit.
        ValueError: It does not fit now, or requires a GPU that is missing.
    """
    name, gpus, layers = settings["name"], _gpus(), settings["gpu_layers"]
    if layers and not gpus:
        raise ValueError(
            f"{name}: gpu_layers: {layers} was set, and this llama.cpp has no GPU: it was built for the CPU alone, or sees "
            "none. Leave `gpu_layers` out, or install a build for your GPU: `unilect docs gpu` says how."
        )
    if reason := _placement_error(settings, len(gpus)):
        raise ValueError(f"{name}: {reason}")
    free, total, reserved = free_bytes(), total_bytes(), settings["reserved_bytes"]
    if free is not None and total is not None and layers != 0:
        free += sum(size for size, _ in gpu_sizes())
        total += sum(size for _, size in gpu_sizes())
    if reason := size_error(name, needs, total):
        raise memory.TooLargeError(reason)
    if reason := memory_error(name, needs, free, reserved):
        raise ValueError(reason)
    return memory_warning(name, needs, None if free is None else free - reserved)


def _placement_error(settings: dict[str, Any], gpus: int) -> str:
    """Return the reason why a model cannot be placed on GPUs as it is to be; empty where it can."""
    defaults = {"split_mode": "layer", "tensor_split": [], "main_gpu": 0}
    given = [option for option, default in defaults.items() if settings[option] != default]
    if given and not gpus:
        return f"{given[0]}: {settings[given[0]]} was set, and this llama.cpp has no GPU. Leave `{given[0]}` out."
    if settings["main_gpu"] and settings["main_gpu"] >= gpus:
        return (
            f"main_gpu: {settings['main_gpu']} was set, and llama.cpp sees {gpus} GPUs, from 0 on."
        )
    if len(settings["tensor_split"]) > gpus:
        return f"tensor_split: has {len(settings['tensor_split'])} parts, and llama.cpp sees {gpus} GPUs. Give one part for each."
    return ""


def parameters(settings: dict[str, Any], needs: Needs) -> Any:
    """llama.cpp's parameters for our settings."""
    p = xllamacpp.CommonParams()
    p.model.path = settings["path"]
    p.hostnames = [settings["socket_path"]]
    p.api_keys = [settings["api_key"]]
    # errors are the reason when it fails; of the rest the parent keeps what has nothing that clients say
    p.verbosity = 3 if settings.get("verbose") else 1
    p.ui = False
    p.endpoint_slots = p.endpoint_props = p.endpoint_metrics = True
    p.slot_save_path = f"{Path(settings['socket_path']).parent}/"  # see `_slot_files`
    p.use_jinja = True
    p.warmup = False
    p.cont_batching = True
    p.cache_idle_slots = False  # else every request waits until all idle slots are copied
    p.cache_ram_mib = needs.prompts // MIB
    p.n_ctx_checkpoints = needs.checkpoints
    p.ctx_shift = settings["context_shift"]
    p.n_parallel = settings["parallel"]
    p.n_ctx = settings["context"] * settings["parallel"]
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = settings["threads"]
    p.n_batch = settings["batch"] or (_GPU_BATCH if has_gpu() else STEP)
    p.n_batch = max(p.n_batch, p.n_parallel)  # a step makes a token for each
    p.n_ubatch = min(p.n_batch, 512)
    # it reads the file once more, and changes nothing but the layers that are nobody's choice
    p.fit_params = settings["gpu_layers"] is None and has_gpu()
    if settings["gpu_layers"] is not None:
        p.n_gpu_layers = 10_000 if settings["gpu_layers"] == -1 else settings["gpu_layers"]
    p.no_extra_bufts = not settings["repack"]
    p.main_gpu = settings["main_gpu"]
    p.split_mode = _member(xllamacpp.llama_split_mode, "LLAMA_SPLIT_MODE", settings["split_mode"])
    if settings["tensor_split"]:
        p.tensor_split = settings["tensor_split"]
    if settings["mmproj"]:
        p.mmproj.path = settings["mmproj"]
    if settings["chat_template"]:
        p.chat_template = settings["chat_template"]
    p.cache_type_k = _member(xllamacpp.ggml_type, "GGML_TYPE", settings["cache_type_k"])
    p.cache_type_v = _member(xllamacpp.ggml_type, "GGML_TYPE", settings["cache_type_v"])
    if settings["cache_type_k"] == settings["cache_type_v"] == "f32":
        # llama.cpp's flash attention reckons with 16 bits, whatever the cache holds
        p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if settings["speculative"]:
        _draft(p, settings)
    p.lora_adapters = [
        xllamacpp.CommonAdapterLoraInfo(path, scale) for path, scale in settings["lora"]
    ]
    if settings["embedding"]:
        p.embedding = True
        p.n_batch = p.n_ubatch = settings["context"]  # a text must be embedded in one step
        if settings["pooling"]:
            kind = xllamacpp.llama_pooling_type
            p.pooling_type = _member(kind, "LLAMA_POOLING_TYPE", settings["pooling"])
    return p


def _draft(p: Any, settings: dict[str, Any]) -> None:
    """Set the parameters of speculative decoding."""
    kind, draft, most = "NGRAM_SIMPLE", p.speculative.draft, settings["draft_max"]
    if settings["speculative"] == "ngram":
        most = most or (_NGRAM_DRAFT if has_gpu() else _NGRAM_CPU)
        repeated = p.speculative.ngram_simple
        repeated.size_m, repeated.size_n = (
            most,
            min(repeated.size_n, most),
        )  # else nothing is drafted
    else:
        kind = "DRAFT_SIMPLE"
        draft.mparams.path = settings["speculative"]
        most = draft.n_max = most or _MODEL_DRAFT
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = settings["threads"]
        draft.cache_type_k, draft.cache_type_v = p.cache_type_k, p.cache_type_v
        draft.n_gpu_layers = p.n_gpu_layers
    p.speculative.types = [
        _member(xllamacpp.common_speculative_type, "COMMON_SPECULATIVE_TYPE", kind)
    ]
    p.n_batch = max(p.n_batch, most + 1)  # what is drafted is checked in one step


def _check_drafting(settings: dict[str, Any]) -> None:
    """
    Check that the server drafts; where the vocabularies differ it only says in its log that it does not.

    Raises:
        ValueError: It does not.
    """
    from http.client import HTTPConnection  # most models have no draft

    connection = HTTPConnection("engine")
    with closing(connection), socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.connect(settings["socket_path"])
        connection.request("GET", "/slots", headers={"Authorization": f"Bearer {settings['api_key']}"})  # fmt: skip
        slots = msgspec.json.decode(connection.getresponse().read(), type=list[_Slot])
    if not all(slot.speculative for slot in slots):
        raise ValueError(
            f"{settings['name']}: speculative: llama.cpp cannot draft with {Path(settings['speculative']).name} for this model: their vocabularies differ, or the "
            "model's memory cannot go back. Take a small model of the same family, `ngram`, or leave `speculative` out."
        )


def dry_run(settings: dict[str, Any]) -> None:
    """
    Have llama.cpp reckon what a model takes, which it prints on stderr as a table; this process does not outlive that by much.

    Nothing is read but the head of the file, and nothing allocated for its tensors.
    """
    chosen = parameters(settings, msgspec.convert(settings["needs"], Needs))
    chosen.verbosity = 4  # the table's
    # what looks for a fit prints it, and the loading ends for want of memory
    chosen.fit_params = chosen.no_alloc = True
    _server.append(xllamacpp.Server(chosen))


def _build() -> str:
    """llama.cpp's build, as its server tells it; wheels that do not name it have its number at the end of their version."""
    number = xllamacpp.BUILD_INFO["build_number"] or xllamacpp.__version__.rpartition(".")[2]
    return f"b{number}"


def has_gpu() -> bool:
    """Return True if llama.cpp has something faster than the processor."""
    return bool(_gpus())


def gpu_sizes() -> list[tuple[int, int]]:
    """Return the free and all bytes of each GPU that has memory of its own."""
    kind = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_GPU
    own = [device for device in _gpus() if device["type"] == kind]
    return [(int(device["memory_free"]), int(device["memory_total"])) for device in own]


def _gpus() -> list[dict[str, Any]]:
    """List llama.cpp's GPUs, also those that share the processor's memory."""
    kinds = xllamacpp.ggml_backend_dev_type
    some = (kinds.GGML_BACKEND_DEVICE_TYPE_GPU, kinds.GGML_BACKEND_DEVICE_TYPE_IGPU)
    devices: list[dict[str, Any]] = xllamacpp.get_device_info()
    return [device for device in devices if device["type"] in some]


def _member(kind: Any, prefix: str, name: str) -> Any:
    """Return a member of one of llama.cpp's enumerations."""
    return getattr(kind, f"{prefix}_{name.upper()}")


if __name__ == "__main__":
    child.run(serve)
