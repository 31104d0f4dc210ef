"""
The settings of one model: the table `[models.NAME]` of a configuration.

A field's description is its documentation, as in `config`.
"""

import re
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

#: What clients may call a model.
NAME = r"^[A-Za-z0-9._:/@+-]{1,128}$"


def wrong_name(name: str) -> str | None:
    """What is wrong with the name of a model, wherever it is given; None for nothing."""
    if re.fullmatch(NAME[1:-1], name):
        return None
    other = re.search(r"[^A-Za-z0-9._:/@+-]", name)
    found = f"`{other[0]}`" if other and other[0].isprintable() else "a character of another kind"
    if other and other[0].isspace():
        found = "a blank"
    if other is None:
        found = f"{len(name)} characters"
    return f"a model's name has 1 to 128 letters, digits and . _ : / @ + -; found {found}."


def described(description: str, **limits: Any) -> Meta:
    """A field's documentation, and its bounds."""
    return Meta(description=description, **limits)


class RopeScaling(Struct, frozen=True, forbid_unknown_fields=True):
    """How rotary positions are stretched, in the words of transformers' `config.json`."""

    rope_type: Literal["linear", "dynamic", "yarn", "ntk"]
    factor: Annotated[float, Meta(ge=1, le=1000)]
    original_max_position_embeddings: Annotated[int, Meta(ge=16)] | None = None


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: the table `[models.NAME]`."""

    source: Annotated[
        str | Annotated[list[str], Meta(min_length=1)],
        described(
            "Where the model comes from: `demo:`, a path to a .gguf file, `gguf:org/repo/file.gguf`, a folder of "
            "transformers, `hf:org/name`, `chatglm:model.bin`, `http://host/v1`. "
            "See docs/backends. A list names several backends of the same model, among which requests are balanced."
        ),
    ] = "demo:"
    fallback: Annotated[
        str | None,
        described(
            "The model that answers when no backend of this one can; the header `X-Unilect-Fallback` then names it."
        ),
    ] = None
    aliases: Annotated[list[str], described("Other names that clients may send for it.")] = []
    load: Annotated[
        Literal["start", "demand"],
        described("Start the model with the server, or with its first request."),
    ] = "start"
    idle_stop_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        described(
            "Stop the engine after so many seconds without a request; it starts again on demand.",
        ),
    ] = None
    unsupported: Annotated[
        Literal["refuse", "report"],
        described(
            "What happens to a parameter that the backend does not honour: *refuse* the request with 400, or answer "
            "without it and *report* it in the header `X-Unilect-Ignored`. What binds an answer to a form (a schema, a grammar) is always refused."
        ),
    ] = "refuse"
    defaults: Annotated[
        dict[str, Any],
        described("Values for parameters that a request leaves out, such as `temperature`."),
    ] = {}
    completion_defaults: Annotated[
        dict[str, Any],
        described("The same for plain completions alone, stronger than `defaults`."),
    ] = {}
    # engines
    context: Annotated[
        Annotated[int, Meta(ge=16, le=10_000_000)] | None,
        described(
            "Tokens of prompt and answer together, for each request; llama.cpp rounds up to 256. Default: the model's own, at most 8192.",
        ),
    ] = None
    parallel: Annotated[
        int,
        described(
            "Requests that are answered at the same time; each has the whole `context`, and memory for it. More wait.",
            ge=1,
            le=256,
        ),
    ] = 4
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        described(
            "Processor threads. Default: one less than there are cores, shared out among the engines of this server; as "
            "many as cores collapses as soon as anything else runs.",
        ),
    ] = None
    gpu_layers: Annotated[
        Annotated[int, Meta(ge=-1, le=10_000)] | None,
        described(
            "Layers on the GPU; -1 for all. Default: all where llama.cpp has a GPU. Refused where it has none; docs/backends/gguf.md says how to get a build for yours.",
        ),
    ] = None
    batch: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        described(
            "Prompt tokens read in one step. Default 64 on a CPU, so that a prompt can be given up midway; 2048 on a GPU.",
        ),
    ] = None
    lora: Annotated[
        list[str],
        described(
            "LoRA adapters (GGUF files, or folders of peft), all applied; `path=0.5` sets the scale. Models with the same "
            "folder and other adapters share one base.",
        ),
    ] = []
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        described(
            "Type of the weights of a transformers model; *auto* is float32 on a processor and bfloat16 on a GPU."
        ),
    ] = "auto"
    device: Annotated[
        str,
        described(
            "Where a transformers model runs: `cpu`, `cuda:0`, `cuda:0,1` (they share its layers); `auto` takes as many GPUs as it needs.",
            examples=["auto", "cpu", "cuda:0", "cuda:0,1"],
            pattern=r"^(auto|cpu|cuda(:\d{1,3}(,\d{1,3})*)?)$",
        ),
    ] = "auto"
    quantize: Annotated[
        Literal["8bit", "4bit"] | None,
        described(
            "Weights of a transformers model in fewer bits; all but 8 bits on a processor need bitsandbytes.",
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, described("Run the Python code that a transformers model brings with it.")
    ] = False
    allow_pickle: Annotated[
        bool,
        described("Load weights that are pickles, which can run code, where there are no others."),
    ] = False
    rope_scaling: Annotated[
        RopeScaling | None,
        described(
            "Stretch the context of a transformers model with rotary positions: `rope_type` (`linear`, `yarn`, `dynamic`, or `ntk`, "
            "whose `factor` is also known as alpha), `factor`, and `original_max_position_embeddings` where the model was trained "
            "for less than it says. `context` may then be `factor` times as long."
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        described(
            "A folder whose tokenizer a transformers model uses, with the chat template there. Default: that of an adapter which is "
            "merged and has one, else the model's own."
        ),
    ] = None
    mmproj: Annotated[
        str | None, described("The projector (GGUF) of a model that sees images.")
    ] = None
    chat_template: Annotated[
        str | None,
        described(
            "How a conversation becomes a prompt, instead of the model's own way: the name of a format, such as `vicuna_v1.1` "
            "(docs/templates.md has all), a Jinja template, or the path of one."
        ),
    ] = None
    completion_template: Annotated[
        str | None,
        described(
            "A format, Jinja or a path as in `chat_template`: plain completions are wrapped in it, as one turn of a user. Default: "
            "prompts go to the model as they are."
        ),
    ] = None
    stop: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=256)]],
        described("Words at which an answer ends, beside those of the request."),
    ] = []
    cache_ram_mib: Annotated[
        Annotated[int, Meta(ge=0, le=2**24)] | None,
        described(
            "Memory (MiB) of an engine for what it remembers of prompts that nobody is asking just now; 0 remembers none. Default: an "
            "eighth of what is free when it starts, shared out among the engines of this server, at most 8192 for GGUF models and 64 for the "
            "bundled one, and two whole contexts for one of transformers."
        ),
    ] = None
    cache_type_k: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
        described("Type of the keys in the KV cache."),
    ] = "f16"
    cache_type_v: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
        described("Type of the values in the KV cache."),
    ] = "f16"
    pooling: Annotated[
        Literal["mean", "cls", "last"] | None,
        described("How embeddings are pooled. Default: the model's own way, else the mean."),
    ] = None
    start_timeout_s: Annotated[
        float, described("The longest time that loading may take.", gt=0)
    ] = 600.0
    hang_timeout_s: Annotated[
        float,
        described(
            "An engine that answers nothing for so long while requests run is killed and started again.",
            gt=0,
        ),
    ] = 60.0
    # upstreams
    model: Annotated[
        str | None,
        described(
            "The model's name on the upstream. Default: this table's name where it has such a model, else its only model. `*` serves "
            "all models of a server, each under its own name, also those that come later."
        ),
    ] = None
    api_key: Annotated[
        str | None,
        described("The upstream's key; `$NAME` takes it from the environment."),
    ] = None
    api_key_header: Annotated[
        str, described("The header that carries it; `Authorization` gets `Bearer` before it.")
    ] = "Authorization"
    timeout_s: Annotated[
        float, described("The longest silence of an upstream, before and within an answer.", gt=0)
    ] = 300.0
    reuse_connections: Annotated[
        bool,
        described(
            "Keep connections to the upstream open. Off, because an upstream that sends one answer too many would give it to "
            "the next caller."
        ),
    ] = False
    embedding_batch: Annotated[
        int,
        described("Inputs that a FastChat worker is asked to embed at a time.", ge=1, le=2048),
    ] = 32
    whole_answers: Annotated[
        Literal["auto", "stream", "whole"],
        described(
            "How an upstream is asked where the client wants a whole answer: for a *stream*, or for the *whole*, which is cheaper "
            "to read; but many servers go on generating when the client of a whole answer leaves. *auto*: for the whole where "
            "its list of models says that it is vLLM or unilect, which stop; else for a stream."
        ),
    ] = "auto"
    # backends of other packages
    options: Annotated[
        dict[str, Any],
        described(
            "What a backend of another package can be told beside all these; see its documentation."
        ),
    ] = {}

    @property
    def sources(self) -> list[str]:
        """The sources, one for each backend."""
        return [self.source] if isinstance(self.source, str) else self.source
