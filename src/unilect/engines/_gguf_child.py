"""
The child that runs llama.cpp's server through xllamacpp. The only file that knows the library.

Source: https://github.com/xorbitsai/xllamacpp
"""

from typing import Any

import xllamacpp

from unilect.engines import _child
from unilect.engines._memory import MIB, free_bytes

_POOLING = {
    "mean": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN,
    "cls": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_CLS,
    "last": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST,
}
_CPU_BATCH = (
    64  # a prompt can be given up between batches; on a CPU, reading is as fast as with 2048
)
_GPU_BATCH = 2048
_MOST_CACHE_MIB = 8192  # llama.cpp's own
_CACHE_PART = 8  # of what is free
_server: list[Any] = []  # kept alive until the process ends


def serve(settings: dict[str, Any]) -> dict[str, Any]:
    """
    Start the server on the socket of the settings.

    Raises:
        RuntimeError: llama.cpp refuses; its reason is on stderr.
    """
    _server.append(xllamacpp.Server(parameters(settings)))
    return {"address": _server[0].listening_address}


def parameters(settings: dict[str, Any]) -> Any:
    """llama.cpp's parameters for our settings."""
    p = xllamacpp.CommonParams()
    p.model.path = settings["path"]
    p.hostnames = [settings["socket_path"]]
    p.api_keys = [settings["api_key"]]
    p.verbosity = 1  # errors only; they are the reason when it fails
    p.ui = False
    p.endpoint_slots = p.endpoint_props = p.endpoint_metrics = True
    p.use_jinja = True
    p.warmup = False
    p.cont_batching = True
    p.cache_idle_slots = False  # else every request waits until all idle slots are copied
    p.cache_ram_mib = cache_ram_mib(settings["cache_ram_mib"], free_bytes())
    p.ctx_shift = False  # dropping the middle of a conversation unasked loses the newest text first
    p.n_parallel = settings["parallel"]
    p.n_ctx = settings["context"] * settings["parallel"]
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = settings["threads"]
    p.n_batch = settings["batch"] or (_GPU_BATCH if has_gpu() else _CPU_BATCH)
    p.n_ubatch = min(p.n_batch, 512)
    if settings["gpu_layers"] is not None:
        p.n_gpu_layers = 10_000 if settings["gpu_layers"] == -1 else settings["gpu_layers"]
    if settings["mmproj"]:
        p.mmproj.path = settings["mmproj"]
    if settings["chat_template"]:
        p.chat_template = settings["chat_template"]
    p.cache_type_k = getattr(xllamacpp.ggml_type, _ggml_type(settings["cache_type_k"]))
    p.cache_type_v = getattr(xllamacpp.ggml_type, _ggml_type(settings["cache_type_v"]))
    p.lora_adapters = [
        xllamacpp.CommonAdapterLoraInfo(path, scale) for path, scale in settings["lora"]
    ]
    if settings["embedding"]:
        p.embedding = True
        p.n_batch = p.n_ubatch = settings["context"]  # a text must be embedded in one step
        if settings["pooling"]:
            p.pooling_type = _POOLING[settings["pooling"]]
    return p


def cache_ram_mib(given: int | None, free: int | None) -> int:
    """What llama.cpp may keep of conversations that have no slot; a share of what is free, where nobody says."""
    if given is not None:
        return given
    return _MOST_CACHE_MIB if free is None else min(_MOST_CACHE_MIB, free // _CACHE_PART // MIB)


def has_gpu() -> bool:
    """True where llama.cpp has something faster than the processor."""
    return any(
        "gpu" in str(device.get("type", "")).lower() for device in xllamacpp.get_device_info()
    )


def _ggml_type(name: str) -> str:
    return f"GGML_TYPE_{name.upper()}"


if __name__ == "__main__":
    _child.run(serve)
