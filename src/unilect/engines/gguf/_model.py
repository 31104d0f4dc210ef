"""The facts that the child's loaded model shows: its capabilities, and the values that it runs with."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from unilect.api.backend import Adapter, Capabilities, NativeFacts, Support
from unilect.api.parameters.support import TOOL_PARAMETERS
from unilect.config.model import ModelConfig
from unilect.constraints.keywords import LLAMACPP
from unilect.core.errors import ConfigError, UnilectError
from unilect.engines.gguf import _request as wire
from unilect.engines.gguf._file import GgufHead
from unilect.engines.gguf._turns import prompt_of
from unilect.engines.process.child_server import ChildServer
from unilect.families import PLAIN, may_think, name_of, of_template
from unilect.http.client import HttpServer
from unilect.templates.chat import Variables
from unilect.templates.probe import PROBE_TOOLS, PROBES, shows_tool
from unilect.tools.messages import takes_effort
from unilect.wire.llamacpp import Props, decode_answer, facts_of, tokenize

_WHY_NOT = dict.fromkeys(
    ("chat completions", "completions", "embeddings"), "it is a reranker, for /v1/rerank"
)


class _Models(Struct):
    data: list[dict[str, Any]]


_EFFORT = "reasoning_effort"
_MARK = PLAIN.thoughts[0]
_THINKS = "enable_thinking"  # a parameter, and what templates call it


class Loaded(Struct):
    """
    The facts of a loaded model.

    Attributes:
        props: The fields that unilect acts on.
        facts: The fields that a client may see.
        thoughts_end: An answer's thoughts can be ended after a number of tokens.
        takes_tools: The chat template writes a request's tools into the prompt.
    """

    props: Props
    facts: NativeFacts
    thoughts_end: bool
    takes_tools: bool


async def read_loaded(server: HttpServer, template: str | None) -> Loaded:
    """
    Ask a child that has started.

    Args:
        template: The configured chat template; None for the model's own.
    """
    body = await server.get("/props")
    props = decode_answer(body, Props)
    models = decode_answer(await server.get("/v1/models"), _Models)
    ends = _MARK in (template or props.chat_template) and await _is_one_mark(server)
    return Loaded(props, facts_of(body, models.data[0]["meta"]), ends, await _takes_tools(server))


async def read_started(child: ChildServer, template: str | None) -> Loaded:
    """As `read_loaded`, of a child that has just started; one that ends meanwhile is started again, once."""
    life = child.process.starts
    try:
        return await read_loaded(await child.connect(), template)
    except UnilectError:
        if not await child.process.has_ended(life):
            raise
    await child.process.start()
    return await read_loaded(await child.connect(), template)


async def _takes_tools(server: HttpServer) -> bool:
    """Return True if the child's chat template writes a request's tools into the prompt."""
    for turns in PROBES:
        if shows_tool(await prompt_of(server, turns, tools=PROBE_TOOLS) or ""):
            return True
    return False


async def _is_one_mark(server: HttpServer) -> bool:
    """
    Return True if the thinking mark has the same tokens wherever it stands.

    llama.cpp looks for the tokens of the mark alone. Where SentencePiece puts a blank before it, they are never found.
    """
    alone = await tokenize(server, _MARK)
    behind = await tokenize(server, f"\n{_MARK}")
    return behind[-len(alone) :] == alone


def ranks(head: GgufHead, config: ModelConfig) -> bool:
    """
    Return True if a file is a reranker and is used as one.

    Raises:
        ConfigError: `pooling` is `rank`, and the file has no layer that makes a score.
    """
    if config.pooling is None:
        return head.ranks
    if config.pooling == "rank" and not (head.ranks or head.classifies):
        raise ConfigError(
            "pooling: `rank` needs a model with a classifier (tensors `cls.*`), and this file has none. Leave `pooling` out, or convert "
            "the reranker with a newer convert_hf_to_gguf.py of llama.cpp."
        )
    return config.pooling == "rank"


def static_capabilities(
    head: GgufHead, config: ModelConfig, template: str, context: int, adapters: tuple[Adapter, ...]
) -> Capabilities:
    """Return the capabilities that a model's file shows before it is loaded."""
    missing = ["suffix", "input_extra"] if head.fill_in is None else []
    if not adapters or config.mmproj:  # no slot is erased beside a projector
        missing.append("lora")
    ranker = ranks(head, config)
    writes = not (head.embedding_only or ranker)
    return Capabilities(
        parameters=_with_thinking(wire.PARAMETERS | dict.fromkeys(missing, "refused"), template),
        fans_out=True,
        continues=True,
        resumes="again",
        context=context,
        vision=bool(config.mmproj),
        image_urls=False,
        thinking=may_think(template),
        template_names=Variables(template),
        schema_keywords=LLAMACPP,
        chat=writes and (config.chat_template is not None or bool(head.template)),
        completions=writes,
        slots=config.most_parallel,
        embeddings=not ranker,
        rerank=ranker,
        adapters=adapters,
        why_not=_WHY_NOT if ranker else {},
    )


def _with_thinking(parameters: Mapping[str, Support], template: str) -> dict[str, Support]:
    """Return the parameters with those of thinking, by what a template asks for; an effort that it does not know is ignored, and named."""
    found = {**parameters, **{name: wire.PARAMETERS[name] for name in (_THINKS, _EFFORT)}}
    if _THINKS not in template:
        found[_THINKS] = "refused"
    if not takes_effort(template):
        del found[_EFFORT]
    return found


def refine(can: Capabilities, found: Loaded, template: str, fault: str) -> Capabilities:
    """
    Return the capabilities of a loaded model.

    Args:
        can: The capabilities as they were known before.
        template: Its chat template.
        fault: Why its own chat template cannot be used; empty where it can.
    """
    if fault:
        can = can.without_chat(fault)
    parameters = _with_thinking(can.parameters, template)
    if not found.takes_tools:
        parameters |= dict.fromkeys(TOOL_PARAMETERS, "refused")
    if not found.thoughts_end:
        parameters["thinking_budget_tokens"] = "refused"
    return msgspec.structs.replace(
        can,
        parameters=parameters,
        context=found.props.default_generation_settings.n_ctx or can.context,
        vision=bool(found.props.modalities.get("vision")),
        tool_form=name_of(of_template(template)),
        thinking=may_think(template),
        template_names=Variables(template),
    )
