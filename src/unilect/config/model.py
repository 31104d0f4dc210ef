"""The settings of one model: the table `[models.NAME]` of a configuration."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from unicodedata import normalize

from msgspec import Meta, Struct

from unilect.config import paths
from unilect.config.command import CommandOptions
from unilect.config.kinds import BATCHED, COMMANDS, ENGINES, UPSTREAMS, name_kinds
from unilect.config.limits import Limits
from unilect.config.mistakes import ErrorCollector
from unilect.config.option import Flag, check_table, option
from unilect.config.sizes import wrong_size
from unilect.runtime.redact import redact

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


class RopeScaling(Struct, frozen=True, forbid_unknown_fields=True):
    """The stretching of rotary positions, in the words of transformers' `config.json`."""

    rope_type: Literal["linear", "dynamic", "yarn", "ntk"]
    factor: Annotated[float, Meta(ge=1, le=1000)]
    original_max_position_embeddings: Annotated[int, Meta(ge=16)] | None = None


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The price of a model, in any currency for a million tokens.

    Attributes:
        prompt: Of the prompt, without those from a cache.
        cached: Of the prompt, from a cache.
        completion: Of the answer.
    """

    prompt: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    cached: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    completion: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0


class Replicas(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The number of a model's replicas, which follows the requests in flight.

    Attributes:
        min: The fewest; 0 for none while nobody asks.
        max: The most.
        up_after_s: So long there must be too many requests before a replica is added.
        down_after_s: So long there must be too few before one is stopped.
    """

    min: Annotated[int, Meta(ge=0, le=1000)] = 1
    max: Annotated[int, Meta(ge=1, le=1000)] = 1
    up_after_s: Annotated[float, Meta(ge=0, le=86400)] = 2.0
    down_after_s: Annotated[float, Meta(ge=0, le=86400)] = 60.0


class ModelConfig(CommandOptions, frozen=True, kw_only=True):
    """One model: the table `[models.NAME]`."""

    source: str | Annotated[list[str], Meta(min_length=1)] = option(
        "demo:",
        "Where the model is: `demo:`, a path to a .gguf file, `org/repo` of the hub, `https://host/file.gguf`, a transformers folder, "
        "`chatglm:model.bin`, `vllm:org/name`, `http://host/v1`. See docs/backends. A list is load-balanced: several backends of one model.",
        path=paths.source,
    )
    base: str | None = option(
        None,
        "Make this a preset: a further name for the model of this name, whose engine answers, with settings of its own (`system`, "
        "`defaults`, `stop`, `limits`, ...; see docs/operation.md). Nothing is loaded a second time. Takes the place of `source`.",
        of_presets=True,
        example="demo",
    )
    command: str | Annotated[list[str], Meta(min_length=1)] | None = option(
        None,
        "Command line of any server that answers OpenAI's API or llama.cpp's; it is started and stopped as the model is. Words are split "
        "as a shell does, with its quotes and `#` comments, and no shell runs. Placeholders: `{port}` or `{socket}`, `{file}` or "
        "`{folder}` of `source`, `{name}`, `{context}`, `{parallel}`, `{threads}`, `{key}`; `$NAME` of the environment. See docs/backends/command.md.",
        example="llama-server -m {file} --port {port}",
    )
    fallback: str | None = option(
        None,
        "Model that answers if all backends of this one fail. The header `X-Unilect-Fallback` then names it.",
        live=True,
        of_presets=True,
        example="spare",
    )
    aliases: list[str] = option(
        [], "Additional names of the model.", live=True, of_presets=True, example=["gpt-4o-mini"]
    )
    load: Literal["start", "demand"] = option(
        "start", "Load the model at server start, or on demand (first request).", live=True
    )
    idle_stop_s: Annotated[float, Meta(gt=0)] | None = option(
        None,
        "Stop the engine after this long without a request. The next request starts it again.",
        live=True,
        example=600.0,
    )
    pin: bool = option(
        False,
        "Keep the model in memory once it is loaded: it is never stopped to make room for another one.",
        kinds=(*ENGINES, *COMMANDS),
        live=True,
    )
    memory: str | None = option(
        None,
        "Memory that the model takes at most, such as `6GiB`, where the engine cannot say or says it wrong. Default: what the engine "
        "reckons from the model's files, and what the last load took.",
        kinds=(*ENGINES, *COMMANDS),
        live=True,
        check=wrong_size,
        example="6GiB",
    )
    while_loading: str | None = option(
        None,
        "Model that answers while this one is not loaded, if it is loaded itself; this one is loaded meanwhile. The header "
        "`X-Unilect-Fallback` then names it. Default: requests wait.",
        kinds=(*ENGINES, *COMMANDS),
        live=True,
        example="spare",
    )
    unsupported: Literal["refuse", "report"] = option(
        "refuse",
        "How unsupported parameters are handled: *refuse* the request with 400, or ignore the parameter and *report* it in the "
        "header `X-Unilect-Ignored`. Unsupported constraints (schemas, grammars) are always refused.",
        live=True,
        of_presets=True,
    )
    limits: Limits | None = option(
        None,
        "Limits of all requests to this model together, with the limits of `[limits]`.",
        live=True,
        of_presets=True,
        example={"parallel": 8},
    )
    drop_billing_header: bool = option(
        True,
        "Drop Claude Code's billing header (`x-anthropic-billing-header: ...`) from system messages, in every API. It changes with "
        "each request, and no prompt cache would find what follows it. Nothing else of a prompt is dropped or moved for a cache.",
        live=True,
        of_presets=True,
    )
    defaults: dict[str, Any] = option(
        {},
        "Default values of request parameters, such as `temperature`.",
        live=True,
        of_presets=True,
        example={"temperature": 0.7},
    )
    completion_defaults: dict[str, Any] = option(
        {},
        "Like `defaults`, for plain completions only. Overrides `defaults`.",
        live=True,
        of_presets=True,
        example={"max_tokens": 16},
    )
    price: Price | None = option(
        None,
        "Price for a million tokens, in any one currency: `prompt`, `cached` (tokens of the prompt that came from a cache) and "
        "`completion`; what is left out is free. The ledger records the cost of each request. Default: free.",
        live=True,
        of_presets=True,
        example={"prompt": 1.0, "cached": 0.1, "completion": 4.0},
    )
    system: Annotated[str, Meta(min_length=1)] | None = option(
        None,
        "System message of chats that have none: it is put first where no message has the role `system` or `developer`. A client's "
        "own stands instead of it.",
        live=True,
        of_presets=True,
        example="You are a careful reviewer of code.",
    )
    unlisted: bool = option(
        False,
        "Serve the model without listing it: it is in no list of models for clients (`/v1/models`, `/api/tags`).",
        live=True,
        of_presets=True,
    )
    # engines
    context: Annotated[int, Meta(ge=16, le=10_000_000)] | None = option(
        None,
        "Context size in tokens for each request (prompt and answer); llama.cpp rounds up to a multiple of 256. Default: the "
        "model's own, at most 8192; of a GGUF model fewer where there is no memory for so many.",
        kinds=(*ENGINES, *COMMANDS),
        flag=Flag("--context", "Context size per request."),
        example=8192,
    )
    parallel: Annotated[int, Meta(ge=1, le=256)] | None = option(
        None,
        "Maximum number of concurrent requests; further requests are queued. Each has a KV cache of the whole `context`. Default: 4; "
        "of a GGUF model fewer where there is no memory for so many.",
        kinds=(*BATCHED, *COMMANDS),
        of_replicas=True,
        flag=Flag("--parallel", "Concurrent requests [4]."),
        example=4,
    )
    replicas: Annotated[int, Meta(ge=1, le=1000)] | Replicas | None = option(
        None,
        "Run so many copies of the model on a Ray cluster; see docs/fleet.md. `{ min = 0, max = 8 }` follows the load.",
        kinds=(*ENGINES, "echo"),
        example=2,
    )
    resources: dict[str, float | str] = option(
        {},
        "What the cluster keeps for each replica: `cpu` (default: `threads`, else 1), `gpu`, `memory` such as `24GiB`, and names of "
        "the operator's own.",
        kinds=(*ENGINES, "echo"),
        needs="replicas",
        example={"gpu": 1, "memory": "24GiB"},
    )
    accelerator: str | None = option(
        None,
        "The kind of accelerator that a replica needs, as Ray names it, such as `H200`.",
        kinds=(*ENGINES, "echo"),
        needs="replicas",
        example="H200",
    )
    max_in_flight: Annotated[int, Meta(ge=1, le=100_000)] | None = option(
        None,
        "Maximum number of concurrent requests to each backend; further requests are queued. Default: the slots of a llama.cpp "
        "server, else unlimited. Engines have `parallel`.",
        kinds=(*UPSTREAMS, *COMMANDS, "echo"),
        example=16,
    )
    max_queue: Annotated[int, Meta(ge=0, le=100_000)] = option(
        512,
        "Maximum number of requests that wait for each backend. Beyond it a request is refused: 429 if the caller's own requests fill "
        "the caller's share of the queue, else 503. See docs/queue.md.",
    )
    queue_timeout_s: Annotated[float, Meta(gt=0)] = option(
        600.0,
        "Longest time that a request waits for its turn; then 503. The default is the timeout of OpenAI's clients: agents on a slow "
        "machine wait for minutes, and whoever waits longer has left.",
    )
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = option(
        None,
        "CPU threads. Default: one less than the number of cores, divided among the engines of this server: with a thread on "
        "every core, any other load makes the engine very slow.",
        kinds=(*ENGINES, *COMMANDS),
        flag=Flag("--threads", "CPU threads per engine."),
        example=4,
    )
    batch: Annotated[int, Meta(ge=1, le=65536)] | None = option(
        None,
        "Prompt-processing batch size in tokens. Default: 64 on a CPU, so that a prompt can be cancelled midway; 2048 on a GPU.",
        kinds=BATCHED,
        example=64,
    )
    lora: list[str] = option(
        [],
        "LoRA adapters (GGUF files or PEFT folders); all are applied. `path=0.5` sets the scale. Models with the same folder "
        "and different adapters share one base model.",
        kinds=BATCHED,
        path=paths.adapter,
        flag=Flag("--lora", "LoRA adapter, path[=scale]; may be repeated."),
        example=["adapter.gguf=0.5"],
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "Data type of a transformers model's weights; *auto* is float32 on a CPU and bfloat16 on a GPU.",
        kinds=("hf",),
    )
    device: Annotated[
        str,
        Meta(
            examples=["auto", "cpu", "cuda:0", "cuda:0,1"],
            pattern=r"^(auto|cpu|cuda(:\d{1,3}(,\d{1,3})*)?)$",
        ),
    ] = option(
        "auto",
        "Device of a transformers model: `cpu`, `cuda:0`, `cuda:0,1` (layers split across GPUs); `auto` uses as many GPUs as "
        "needed.",
        kinds=("hf",),
    )
    quantize: Literal["8bit", "4bit"] | None = option(
        None,
        "Weight quantization of a transformers model; all but 8 bits on a CPU requires bitsandbytes.",
        kinds=("hf",),
        example="8bit",
    )
    trust_remote_code: bool = option(
        False, "Run the Python code in a transformers model's repository.", kinds=("hf",)
    )
    allow_pickle: bool = option(
        False, "Load pickled weights if there are no others. A pickle can run code.", kinds=("hf",)
    )
    rope_scaling: RopeScaling | None = option(
        None,
        "RoPE scaling of a transformers model: `rope_type` (`linear`, `yarn`, `dynamic`, or `ntk`, whose `factor` is also known "
        "as alpha), `factor`, and `original_max_position_embeddings` if it is less than the model's configuration says. "
        "`context` may then be `factor` times as long.",
        kinds=("hf",),
        example={"rope_type": "yarn", "factor": 4.0},
    )
    tokenizer: str | None = option(
        None,
        "Folder with the tokenizer and chat template of a transformers model. Default: those of a merged adapter, else the "
        "model's own.",
        kinds=("hf",),
        path=paths.plain,
        example="./chinese-alpaca-tokenizer",
    )
    chat_template: str | None = option(
        None,
        "Chat template: the name of a format such as `vicuna_v1.1` (listed in docs/templates.md), a Jinja template, or the path "
        "of one. Default: the model's own.",
        kinds=("gguf", "hf", "llamacpp", "fastchat", "program"),
        path=paths.template,
        flag=Flag(
            "--chat-template",
            "Name of a prompt format such as chatml (docs/templates.md), a Jinja template, or its path.",
        ),
        example="template.jinja",
    )
    completion_template: str | None = option(
        None,
        "Template for plain completions, as in `chat_template`; the prompt becomes a single user message. Default: prompts are "
        "passed unchanged.",
        live=True,
        of_presets=True,
        path=paths.template,
        example="alpaca-completion",
    )
    stop: list[Annotated[str, Meta(min_length=1, max_length=256)]] = option(
        [],
        "Stop sequences, in addition to those of the request.",
        live=True,
        of_presets=True,
        example=["</s>"],
    )
    cache_ram_mib: Annotated[int, Meta(ge=0, le=2**24)] | None = option(
        None,
        "Prompt-cache size in MiB (KV state of idle conversations). 0 disables it. Default: an eighth of the memory free at "
        "start, divided among the engines of this server, at most 8192 for GGUF models and 64 for the bundled one; for "
        "transformers models two full contexts. A GGUF model has none on a server with an API key, unless `share_cache` is set.",
        kinds=BATCHED,
        example=2048,
    )
    share_cache: bool = option(
        False,
        "Share the prompt cache among all callers (API keys). By default a caller's prompts are reused for that caller only, so that "
        "no other caller learns from the time to the first token whether a prompt was sent before. Set it where all callers may "
        "know of each other's prompts, such as one team with a long common system prompt.",
        kinds=("gguf", "hf", "openai", *COMMANDS),
    )
    pooling: Literal["mean", "cls", "last", "rank"] | None = option(
        None,
        "Pooling of embeddings. *rank* serves the model as a reranker, whose files may not say that it is one; the others serve a "
        "reranker as an embedding model. Default: the model's own, else the mean.",
        kinds=BATCHED,
        example="mean",
    )
    start_timeout_s: Annotated[float, Meta(gt=0)] = option(
        600.0, "Timeout for loading the model.", kinds=ENGINES, of_replicas=True
    )
    hang_timeout_s: Annotated[float, Meta(gt=0)] = option(
        60.0,
        "Restart the engine if it is unresponsive for this long while requests are running, or if a GGUF engine does not begin with "
        "a request for this long, as where its chat template does not end.",
        kinds=BATCHED,
    )
    # upstreams
    model: str | None = option(
        None,
        "Model name on the upstream, or in a folder of GGUF files. Default: this table's name if the upstream has it, else its only model. "
        "`*` serves every model of the upstream or the folder under its own name, including models added later.",
        kinds=("gguf", *UPSTREAMS, *COMMANDS),
        example="qwen3",
    )
    api_key: str | None = option(
        None,
        "API key for the upstream; `$NAME` takes it from the environment.",
        kinds=("openai", "llamacpp", *COMMANDS),
        secret="key",
        example="$UPSTREAM_KEY",
    )
    api_key_header: str = option(
        "Authorization",
        "Header that carries `api_key`; in `Authorization` it follows `Bearer`.",
        kinds=("openai", "llamacpp", *COMMANDS),
    )
    timeout_s: Annotated[float, Meta(gt=0)] = option(
        300.0,
        "Read timeout of the upstream: for the whole head of an answer, then between any two pieces of it.",
    )
    reuse_connections: bool = option(
        False,
        "Reuse upstream connections. Off by default: if an upstream sends a surplus response, the next request would receive "
        "it.",
        kinds=(*UPSTREAMS, *COMMANDS),
    )
    embedding_batch: Annotated[int, Meta(ge=1, le=2048)] = option(
        32, "Batch size of embedding requests to a FastChat worker.", kinds=("fastchat",)
    )
    whole_answers: Literal["auto", "stream", "whole"] = option(
        "auto",
        "How non-streaming requests are sent upstream: *stream* (cancellable everywhere) or *whole* (cheaper, but many servers "
        "do not stop generating on a disconnect). *auto* is whole for vLLM and unilect, which stop, and stream for others.",
        kinds=("openai", *COMMANDS),
    )
    # backends of other packages
    options: dict[str, Any] = option(
        {},
        "Options of a plugin's backend; see its documentation.",
        kinds=("echo",),
        example={"tokens_per_s": 20.0},
    )

    @property
    def most_parallel(self) -> int:
        """The concurrent requests, where nothing makes them fewer."""
        return self.parallel or 4

    @property
    def sources(self) -> list[str]:
        """The sources, one for each backend."""
        return [self.source] if isinstance(self.source, str) else self.source


def check_options(name: str, config: ModelConfig, kinds: Mapping[str, str]) -> None:
    """
    Check that the settings of a model have an effect.

    Args:
        kinds: The kind of each of its sources.

    Raises:
        ConfigError: An option that differs from its default has no effect on any of the sources; all are told.
    """
    found, path = ErrorCollector(), ("models", name)
    if config.command is not None and len(config.sources) > 1:
        found.add(
            f"models.{name}: a model with `command` takes one source, and this one has several. Give each a model of its own.",
            (*path, "source"),
        )
    for option_name, one in ModelConfig.declared.items():
        replicated = one.of_replicas and config.replicas is not None
        if config.is_set(option_name) and not replicated and not one.applies_to(kinds.values()):
            found.add(
                f"models.{name}: {option_name}: applies to {name_kinds(one.kinds)}; it has no effect on "
                f"{redact(' or '.join(kinds))}; leave it out.",
                (*path, option_name),
            )
    check_table(config, path, found)
    found.raise_all()
