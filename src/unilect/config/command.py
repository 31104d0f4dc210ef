"""Options of models that a command line starts."""

from typing import Annotated, Literal

from msgspec import Meta

from unilect.config.kinds import COMMANDS
from unilect.config.llamacpp import LlamaCppOptions
from unilect.config.option import option


class CommandOptions(LlamaCppOptions, frozen=True, kw_only=True):
    """The options of a model with `command`; with those of llama.cpp, since a table has one base."""

    protocol: Literal["openai", "llamacpp"] | None = option(
        None,
        "Protocol of the command's server. Default: detected.",
        kinds=COMMANDS,
        example="openai",
    )
    arguments: str | Annotated[list[str], Meta(min_length=1)] | None = option(
        None,
        "More words for the command line of a program that is named as a source, such as `vllm:org/name`; they come last. Written as `command` is.",
        kinds=("program",),
        example="--dtype bfloat16",
    )
    tool_parser: str | None = option(
        None,
        "The parser of tool calls, of vLLM or SGLang. An empty text is none. Default: the one of the model's family, as its chat template shows it.",
        kinds=("program",),
        example="hermes",
    )
    reasoning_parser: str | None = option(
        None,
        "The parser of thoughts, of vLLM or SGLang. An empty text is none. Default: the one of the model's family, where its chat template shows that it thinks.",
        kinds=("program",),
        example="qwen3",
    )
    health: str | None = option(
        None,
        "Path that the command's server answers with 200 once it can be asked. Default: `/health`, else `/v1/models`.",
        kinds=COMMANDS,
        check=lambda text: "" if text.startswith("/") else "expected a path such as /health.",
        example="/ping",
    )
    environment: dict[str, str] = option(
        {},
        "Variables for the command, beside those that every engine gets; `$NAME` takes one from the environment of unilect, and "
        "`{key}` and other placeholders are those of `command`.",
        kinds=COMMANDS,
        example={"HF_TOKEN": "$HF_TOKEN"},
    )
    start_silence_s: Annotated[float, Meta(gt=0)] = option(
        300.0,
        "A start of the command has failed after this long without progress: nothing in its log, hardly any CPU time, no more memory.",
        kinds=COMMANDS,
    )
    stop_command: str | Annotated[list[str], Meta(min_length=1)] | None = option(
        None,
        "Command line that stops the command's server, run before it is told to end; `{pid}` and the placeholders of `command`.",
        kinds=COMMANDS,
        example="docker stop {name}",
    )
    stop_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = option(
        10.0,
        "Time that the command's processes have to end when stopped; what is left then is killed.",
        kinds=COMMANDS,
    )
