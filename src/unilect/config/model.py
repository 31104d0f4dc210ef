"""
The settings of one model: the table `[models.NAME]` of a configuration.

A field's description is its documentation, as in `config`.
"""

import re
from typing import Annotated, Any, Literal
from unicodedata import normalize

from msgspec import Meta, Struct

from unilect.config.limits import Limits

#: The characters of a model's name: letters and digits of any script, the marks that some scripts write letters with, and signs.
_CHARACTERS = r"\w.:/@+\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u109f\u1780-\u17d3-"
#: What clients may call a model.
NAME = rf"^[{_CHARACTERS}]{{1,128}}(?!\n)$"
_NO_NAME = re.compile(rf"[^{_CHARACTERS}]")


def wrong_name(name: str) -> str | None:
    """Return what is wrong with the name of a model, wherever it is given; None for nothing."""
    other = _NO_NAME.search(name)
    if other is None and 1 <= len(name) <= 128:
        return None
    if other is None:
        found = f"{len(name)} characters"
    elif other[0].isspace():
        found = "a space"
    else:
        found = f"`{other[0]}`" if other[0].isprintable() else "a character of another kind"
    return f"a model's name has 1 to 128 letters, digits and . _ : / @ + -; found {found}."


def name_from(text: str) -> str:
    """
    Return the model's name that is nearest to a text such as a file's name: letters stay, in one spelling, and other characters become `-`.

    >>> name_from("Modèle ü 模型")
    'Modèle-ü-模型'
    """
    name = re.sub(rf"[^{_CHARACTERS}]+|/", "-", normalize("NFC", text))
    return name.strip("-")[:128] or "model"


def described(description: str, **limits: Any) -> Meta:
    """A field's documentation, and its bounds."""
    return Meta(description=description, **limits)


class RopeScaling(Struct, frozen=True, forbid_unknown_fields=True):
    """How rotary positions are stretched, in the words of transformers' `config.json`."""

    rope_type: Literal["linear", "dynamic", "yarn", "ntk"]
    factor: Annotated[float, Meta(ge=1, le=1000)]
    original_max_position_embeddings: Annotated[int, Meta(ge=16)] | None = None


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What a model costs, in any currency for a million tokens.

    Attributes:
        prompt: Of the prompt, without those from a cache.
        cached: Of the prompt, from a cache.
        completion: Of the answer.
    """

    prompt: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    cached: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    completion: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0


class Replicas(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many replicas a model has: the number follows the requests in flight."""

    min: Annotated[int, described("The fewest; 0 for none while nobody asks.", ge=0, le=1000)] = 1
    max: Annotated[int, described("The most.", ge=1, le=1000)] = 1
    up_after_s: Annotated[
        float,
        described(
            "So long there must be too many requests before a replica is added.", ge=0, le=86400
        ),
    ] = 2.0
    down_after_s: Annotated[
        float,
        described("So long there must be too few before one is stopped.", ge=0, le=86400),
    ] = 60.0


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: the table `[models.NAME]`."""

    source: Annotated[
        str | Annotated[list[str], Meta(min_length=1)],
        described(
            "Where the model is: `demo:`, a path to a .gguf file, `gguf:org/repo/file.gguf`, a transformers folder, `hf:org/name`, "
            "`chatglm:model.bin`, `http://host/v1`. See docs/backends. A list is load-balanced: several backends of one model."
        ),
    ] = "demo:"
    fallback: Annotated[
        str | None,
        described(
            "Model that answers if all backends of this one fail. The header `X-Unilect-Fallback` then names it."
        ),
    ] = None
    aliases: Annotated[list[str], described("Additional names of the model.")] = []
    load: Annotated[
        Literal["start", "demand"],
        described("Load the model at server start, or on demand (first request)."),
    ] = "start"
    idle_stop_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        described(
            "Stop the engine after this long without a request. The next request starts it again."
        ),
    ] = None
    unsupported: Annotated[
        Literal["refuse", "report"],
        described(
            "How unsupported parameters are handled: *refuse* the request with 400, or ignore the parameter and *report* it in the "
            "header `X-Unilect-Ignored`. Unsupported constraints (schemas, grammars) are always refused."
        ),
    ] = "refuse"
    limits: Annotated[
        Limits | None,
        described("Limits of all requests to this model together, with the limits of `[limits]`."),
    ] = None
    drop_billing_header: Annotated[
        bool,
        described(
            "Drop Claude Code's billing header (`x-anthropic-billing-header: ...`) from system messages, in every API. It changes with "
            "each request, and no prompt cache would find what follows it. Nothing else of a prompt is dropped or moved for a cache."
        ),
    ] = True
    defaults: Annotated[
        dict[str, Any],
        described("Default values of request parameters, such as `temperature`."),
    ] = {}
    completion_defaults: Annotated[
        dict[str, Any],
        described("Like `defaults`, for plain completions only. Overrides `defaults`."),
    ] = {}
    price: Annotated[
        Price | None,
        described(
            "Price for a million tokens, in any one currency: `prompt`, `cached` (tokens of the prompt that came from a cache) and "
            "`completion`; what is left out is free. The ledger records the cost of each request. Default: free."
        ),
    ] = None
    # engines
    context: Annotated[
        Annotated[int, Meta(ge=16, le=10_000_000)] | None,
        described(
            "Context size in tokens for each request (prompt and answer); llama.cpp rounds up to a multiple of 256. Default: the "
            "model's own, at most 8192."
        ),
    ] = None
    parallel: Annotated[
        int,
        described(
            "Maximum number of concurrent requests; further requests are queued. Each has a KV cache of the whole `context`.",
            ge=1,
            le=256,
        ),
    ] = 4
    replicas: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | Replicas | None,
        described(
            "Run so many copies of the model on a Ray cluster; see docs/fleet.md. `{ min = 0, max = 8 }` follows the load."
        ),
    ] = None
    resources: Annotated[
        dict[str, float | str],
        described(
            "What the cluster keeps for each replica: `cpu` (default: `threads`, else 1), `gpu`, `memory` such as `24GiB`, and names of "
            "the operator's own."
        ),
    ] = {}
    accelerator: Annotated[
        str | None,
        described("The kind of accelerator that a replica needs, as Ray names it, such as `H200`."),
    ] = None
    max_in_flight: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        described(
            "Maximum number of concurrent requests to each backend; further requests are queued. Default: the slots of a llama.cpp "
            "server, else unlimited. Engines have `parallel`."
        ),
    ] = None
    max_queue: Annotated[
        int,
        described(
            "Maximum number of requests that wait for each backend. Beyond it a request is refused: 429 if the caller's own requests fill "
            "the caller's share of the queue, else 503. See docs/queue.md.",
            ge=0,
            le=100_000,
        ),
    ] = 512
    queue_timeout_s: Annotated[
        float,
        described(
            "Longest time that a request waits for its turn; then 503. The default is the timeout of OpenAI's clients: agents on a slow "
            "machine wait for minutes, and whoever waits longer has left.",
            gt=0,
        ),
    ] = 600.0
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        described(
            "CPU threads. Default: one less than the number of cores, divided among the engines of this server: with a thread on "
            "every core, any other load makes the engine very slow."
        ),
    ] = None
    gpu_layers: Annotated[
        Annotated[int, Meta(ge=-1, le=10_000)] | None,
        described(
            "Number of layers to offload to the GPU; -1 for all. Default: as many as fit if llama.cpp has a GPU. Refused without one; "
            "docs/backends/gguf.md says how to install a build for your GPU."
        ),
    ] = None
    batch: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        described(
            "Prompt-processing batch size in tokens. Default: 64 on a CPU, so that a prompt can be cancelled midway; 2048 on a GPU."
        ),
    ] = None
    lora: Annotated[
        list[str],
        described(
            "LoRA adapters (GGUF files or PEFT folders); all are applied. `path=0.5` sets the scale. Models with the same folder "
            "and different adapters share one base model."
        ),
    ] = []
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        described(
            "Data type of a transformers model's weights; *auto* is float32 on a CPU and bfloat16 on a GPU."
        ),
    ] = "auto"
    device: Annotated[
        str,
        described(
            "Device of a transformers model: `cpu`, `cuda:0`, `cuda:0,1` (layers split across GPUs); `auto` uses as many GPUs as "
            "needed.",
            examples=["auto", "cpu", "cuda:0", "cuda:0,1"],
            pattern=r"^(auto|cpu|cuda(:\d{1,3}(,\d{1,3})*)?)$",
        ),
    ] = "auto"
    quantize: Annotated[
        Literal["8bit", "4bit"] | None,
        described(
            "Weight quantization of a transformers model; all but 8 bits on a CPU requires bitsandbytes."
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, described("Run the Python code in a transformers model's repository.")
    ] = False
    allow_pickle: Annotated[
        bool,
        described("Load pickled weights if there are no others. A pickle can run code."),
    ] = False
    rope_scaling: Annotated[
        RopeScaling | None,
        described(
            "RoPE scaling of a transformers model: `rope_type` (`linear`, `yarn`, `dynamic`, or `ntk`, whose `factor` is also known "
            "as alpha), `factor`, and `original_max_position_embeddings` if it is less than the model's configuration says. "
            "`context` may then be `factor` times as long."
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        described(
            "Folder with the tokenizer and chat template of a transformers model. Default: those of a merged adapter, else the "
            "model's own."
        ),
    ] = None
    mmproj: Annotated[str | None, described("Multimodal projector (GGUF) of a vision model.")] = (
        None
    )
    chat_template: Annotated[
        str | None,
        described(
            "Chat template: the name of a format such as `vicuna_v1.1` (listed in docs/templates.md), a Jinja template, or the path "
            "of one. Default: the model's own."
        ),
    ] = None
    completion_template: Annotated[
        str | None,
        described(
            "Template for plain completions, as in `chat_template`; the prompt becomes a single user message. Default: prompts are "
            "passed unchanged."
        ),
    ] = None
    stop: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=256)]],
        described("Stop sequences, in addition to those of the request."),
    ] = []
    cache_ram_mib: Annotated[
        Annotated[int, Meta(ge=0, le=2**24)] | None,
        described(
            "Prompt-cache size in MiB (KV state of idle conversations). 0 disables it. Default: an eighth of the memory free at "
            "start, divided among the engines of this server, at most 8192 for GGUF models and 64 for the bundled one; for "
            "transformers models two full contexts. A GGUF model has none on a server with an API key, unless `share_cache` is set."
        ),
    ] = None
    share_cache: Annotated[
        bool,
        described(
            "Share the prompt cache among all callers (API keys). By default a caller's prompts are reused for that caller only, so that "
            "no other caller learns from the time to the first token whether a prompt was sent before. Set it where all callers may "
            "know of each other's prompts, such as one team with a long common system prompt."
        ),
    ] = False
    cache_type_k: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
        described(
            "KV cache data type for K. With `f32` for K and V attention is computed in 32 bits, too, without flash attention: the "
            "log probabilities are then those of the transformers engine, to 3 decimals."
        ),
    ] = "f16"
    cache_type_v: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
        described("KV cache data type for V."),
    ] = "f16"
    slot_save_path: Annotated[
        str | None,
        described(
            "Folder for what clients save of slots (`POST /slots/{id}?action=save`): the KV cache of a prompt, to be restored later, also "
            "after a restart. Each caller has files of their own, at most 64 for each model. Default: none, nothing is saved."
        ),
    ] = None
    pooling: Annotated[
        Literal["mean", "cls", "last", "rank"] | None,
        described(
            "Pooling of embeddings. *rank* serves the model as a reranker, whose files may not say that it is one; the others serve a "
            "reranker as an embedding model. Default: the model's own, else the mean."
        ),
    ] = None
    start_timeout_s: Annotated[float, described("Timeout for loading the model.", gt=0)] = 600.0
    hang_timeout_s: Annotated[
        float,
        described(
            "Restart the engine if it is unresponsive for this long while requests are running, or if a GGUF engine does not begin with "
            "a request for this long, as where its chat template does not end.",
            gt=0,
        ),
    ] = 60.0
    # upstreams
    model: Annotated[
        str | None,
        described(
            "Model name on the upstream. Default: this table's name if the upstream has it, else its only model. `*` serves every "
            "model of the upstream under its own name, including models added later."
        ),
    ] = None
    api_key: Annotated[
        str | None,
        described("API key for the upstream; `$NAME` takes it from the environment."),
    ] = None
    api_key_header: Annotated[
        str, described("Header that carries `api_key`; in `Authorization` it follows `Bearer`.")
    ] = "Authorization"
    timeout_s: Annotated[
        float,
        described(
            "Read timeout of the upstream: for the whole head of an answer, then between any two pieces of it.",
            gt=0,
        ),
    ] = 300.0
    reuse_connections: Annotated[
        bool,
        described(
            "Reuse upstream connections. Off by default: if an upstream sends a surplus response, the next request would receive "
            "it."
        ),
    ] = False
    embedding_batch: Annotated[
        int,
        described("Batch size of embedding requests to a FastChat worker.", ge=1, le=2048),
    ] = 32
    whole_answers: Annotated[
        Literal["auto", "stream", "whole"],
        described(
            "How non-streaming requests are sent upstream: *stream* (cancellable everywhere) or *whole* (cheaper, but many servers "
            "do not stop generating on a disconnect). *auto* is whole for vLLM and unilect, which stop, and stream for others."
        ),
    ] = "auto"
    # backends of other packages
    options: Annotated[
        dict[str, Any],
        described("Options of a plugin's backend; see its documentation."),
    ] = {}

    @property
    def sources(self) -> list[str]:
        """The sources, one for each backend."""
        return [self.source] if isinstance(self.source, str) else self.source
