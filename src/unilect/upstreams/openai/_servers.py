"""
Known OpenAI-compatible servers: how each is detected, and which parameters it honours, drops or renames.

A parameter that a known server drops silently is refused. An unknown server gets all parameters.
The table is for the versions named in docs/backends/openai.md.

Source: each server's documentation and source; https://platform.openai.com/docs/api-reference/models for the list of models.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from unilect.api.backend import Capabilities, Description, Support
from unilect.api.parameters.foreign import CHANGES_ANSWER, CONSTRAINTS
from unilect.api.parameters.rules import is_neutral, refusal
from unilect.core.errors import InvalidRequest
from unilect.core.requests import (
    LLAMACPP_PARAMETERS,
    ChatRequest,
    Request,
    TextRequest,
    ToolChoice,
)


class ServerKind(Struct, frozen=True):
    """
    A kind of server.

    Attributes:
        name: Its name.
        owner: `owned_by` of the models that it lists.
        paths: Paths in its /openapi.json that no other kind has.
        refused: Parameters that it drops silently.
        refused_in_chat: Parameters that it drops silently in chats only.
        refused_in_completions: Parameters that it drops silently in plain completions only.
        renamed: Parameters that have another name there.
        takes: All fields that it accepts; it refuses or drops others. None if it accepts any field.
        one_choice: It accepts one prompt and returns one choice; more are emulated with concurrent requests.
        one_prompt: It accepts one prompt, and no concurrent requests.
        stream_options: It accepts `stream_options`, for the usage of a stream.
        stops_whole: It stops when a non-streaming client disconnects.
        completions, embeddings, rerank: It has these endpoints, or may have them.
        keeps_stop_words: The text of an answer has the stop word that ended it, and what came with it in one token.
        least_tokens: The smallest `max_tokens` that is safe.
        needs_user: It requires a user message.
        names_tools: It calls the tool that `tool_choice` names; others drop that silently, and are sent this tool alone as one that must be called.
        flags: Parameters that its chat templates are told of, and nobody else there.
        continues: What has an answer go on with a last message of the assistant; None where that cannot be had.
        resumes: How it goes on with an answer that another one has begun, as in `Capabilities`.
        tells_progress: A stream tells how far the prompt was read, on request; then the server sees, too, when its client leaves early.
        tells_words: It tells which stop word has ended an answer only on request.
        tells_tokens: Whose calls it has for tokens.
        salted: Its prompt cache keeps requests with different salts apart, from some version on.
    """

    name: str
    owner: str = ""
    paths: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    refused_in_chat: frozenset[str] = frozenset()
    refused_in_completions: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = {}
    takes: frozenset[str] | None = None
    one_choice: bool = False
    one_prompt: bool = False
    stream_options: bool = True
    stops_whole: bool = False
    completions: bool = True
    embeddings: bool = True
    rerank: bool = False
    keeps_stop_words: bool = False
    least_tokens: int = 0
    needs_user: bool = False
    names_tools: bool = True
    flags: tuple[str, ...] = ()
    continues: Mapping[str, bool] | None = None
    resumes: Literal["text", "both"] | None = None
    tells_progress: bool = False
    tells_words: bool = False
    tells_tokens: Literal["llama.cpp", "vLLM"] | None = None
    salted: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT_LOCAL = _names("verbosity modalities audio prediction web_search_options")
_MIROSTAT = _names("mirostat mirostat_tau mirostat_eta")
_SAMPLING = _names(
    "top_k min_p typical_p repeat_penalty repetition_penalty repeat_last_n ignore_eos grammar"
)
_OF_LLAMA_SERVER = _names("thinking_budget_tokens reasoning_format")
_TOOLS = _names("tools tool_choice parallel_tool_calls")
_FORMAT = _names("response_format")
_NAMED_BY_OTHERS = _names("json_schema format grammar_string")
_OF_VLLM = _names(
    "guided_json guided_regex guided_choice guided_grammar guided_json_object structured_outputs"
)
_OF_SGLANG = _names("regex ebnf")
_CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}
_OLD_LIMIT = {"max_completion_tokens": "max_tokens"}
_ALL = _names(
    "n best_of echo suffix seed stop logit_bias logprobs top_logprobs presence_penalty frequency_penalty response_format "
    "reasoning_effort chat_template_kwargs enable_thinking temperature top_p max_tokens max_completion_tokens dimensions"
)
_LLAMACPP = frozenset(LLAMACPP_PARAMETERS)
_EVERYTHING = _ALL | _OF_LLAMA_SERVER | _NOT_LOCAL | _MIROSTAT | _SAMPLING | _TOOLS | _LLAMACPP

_TRANSFORMERS = _names(
    "model messages prompt stream temperature top_p seed stop max_tokens max_completion_tokens logit_bias tools "
    "chat_template_kwargs suffix generation_config"
)
_FASTCHAT = _names(
    "model messages prompt input stream temperature top_p top_k n max_tokens stop logprobs echo user encoding_format"
)
_CHATGLM = _names("model messages stream temperature top_p max_tokens")

UNKNOWN = ServerKind("unknown", rerank=True)

OLLAMA = ServerKind(
    "Ollama",
    owner="library",
    refused=_NOT_LOCAL
    | _OF_LLAMA_SERVER
    | _MIROSTAT
    | _SAMPLING
    | _LLAMACPP
    | _names(
        "best_of logit_bias tool_choice parallel_tool_calls chat_template_kwargs enable_thinking"
    )
    | (CHANGES_ANSWER.keys() - {"reasoning"}),
    refused_in_completions=_FORMAT,
    renamed=_OLD_LIMIT,
    one_choice=True,
)

TEI = ServerKind("text-embeddings-inference", completions=False, rerank=True)

KINDS = (
    ServerKind(
        "unilect", owner="unilect", stops_whole=True, tells_progress=True, tells_tokens="llama.cpp"
    ),
    ServerKind(
        "vLLM",
        owner="vllm",
        refused=_NOT_LOCAL
        | _MIROSTAT
        | _LLAMACPP
        | _NAMED_BY_OTHERS
        | _OF_SGLANG
        | _names("best_of typical_p repeat_penalty repeat_last_n grammar reasoning_format"),
        renamed={"thinking_budget_tokens": "thinking_token_budget"},
        stops_whole=True,
        rerank=True,
        flags=("enable_thinking",),
        continues=_CONTINUED,
        resumes="text",
        tells_tokens="vLLM",
        salted=True,
    ),
    ServerKind(
        "SGLang",
        owner="sglang",
        refused=_NOT_LOCAL
        | _OF_LLAMA_SERVER
        | _MIROSTAT
        | _LLAMACPP
        | _NAMED_BY_OTHERS
        | _OF_VLLM
        | _names("best_of suffix grammar"),
        rerank=True,
        flags=("enable_thinking",),
        continues={"continue_final_message": True},
        resumes="text",
    ),
    ServerKind(
        "llama-server",
        owner="llamacpp",
        refused=_NOT_LOCAL | (CONSTRAINTS - {"json_schema"}) | _names("best_of suffix"),
        refused_in_completions=_FORMAT,
        renamed={"repetition_penalty": "repeat_penalty"},
        one_choice=True,
        rerank=True,
        names_tools=False,
        flags=("enable_thinking", "reasoning_effort"),
        continues={},
        resumes="both",
        tells_progress=True,
        tells_words=True,
        tells_tokens="llama.cpp",
    ),
    ServerKind(
        "llama-cpp-python",
        owner="me",
        refused=_NOT_LOCAL | CONSTRAINTS | _LLAMACPP | _OF_LLAMA_SERVER | _names("n best_of"),
        refused_in_completions=_FORMAT,
        renamed=_OLD_LIMIT,
        one_prompt=True,
    ),
    OLLAMA,
    ServerKind(
        "FastChat",
        owner="fastchat",
        refused=_EVERYTHING - _FASTCHAT - _OLD_LIMIT.keys(),
        refused_in_chat=_names("logprobs"),
        renamed=_OLD_LIMIT,
        takes=_FASTCHAT,
        stream_options=False,
    ),
    ServerKind(
        "chatglm.cpp",
        owner="owner",
        refused=_EVERYTHING - _CHATGLM - _OLD_LIMIT.keys(),
        renamed=_OLD_LIMIT,
        takes=_CHATGLM,
        stream_options=False,
        completions=False,
        embeddings=False,
        least_tokens=1,
        needs_user=True,
    ),
    ServerKind(
        "transformers serve",
        paths=_names("/load_model /v1/chat/completions /v1/completions"),
        refused=_EVERYTHING - _TRANSFORMERS - {"n", "echo"},
        takes=_TRANSFORMERS,
        one_choice=True,
        stream_options=False,
        keeps_stop_words=True,
        embeddings=False,
    ),
)

_BY_OWNER = {kind.owner: kind for kind in KINDS if kind.owner}
_CONTEXTS = ("max_model_len", "loaded_context_length", "context_length", "max_context_length")


def by_models(models: list[dict[str, Any]], model: str) -> ServerKind:
    """Return the kind of a server, from its list of models."""
    cards = [card for card in models if card["id"] == model] or models
    owners = {str(card.get("owned_by")) for card in cards}
    kind = _BY_OWNER.get(owners.pop(), UNKNOWN) if len(owners) == 1 else UNKNOWN
    if kind.name == "chatglm.cpp" and [card.get("id") for card in models] != ["gpt-3.5-turbo"]:
        return UNKNOWN
    if kind.name == "llama-cpp-python" and not all("permissions" in card for card in models):
        return UNKNOWN
    return kind


def by_description(told: Mapping[str, Any]) -> ServerKind:
    """
    Return the kind of a server that lists no models, from its /openapi.json.

    One whose chats have no field `tools` would drop them silently; such a server takes the fields that it describes, and no others.
    """
    paths = told.get("paths")
    if not isinstance(paths, dict):
        return UNKNOWN
    for kind in KINDS:
        if kind.paths and kind.paths <= paths.keys():
            return kind
    chat, plain = (_fields(told, f"/v1/{path}") for path in ("chat/completions", "completions"))
    if "messages" not in chat or "tools" in chat:
        return UNKNOWN
    takes = chat | plain | {"input", "encoding_format"}
    return ServerKind(
        "the server",
        refused=_EVERYTHING - takes - _OLD_LIMIT.keys(),
        renamed={ours: theirs for ours, theirs in _OLD_LIMIT.items() if ours not in takes},
        takes=takes,
        stream_options="stream_options" in chat,
        completions="prompt" in plain,
        embeddings="/v1/embeddings" in paths,
    )


def _fields(told: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return the fields of the bodies that are posted to a path; none where they are not told, or any field may be there."""
    try:
        body = told["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema = told["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        open_ended = schema.get("additionalProperties", False) is not False
        return frozenset() if open_ended else frozenset(schema["properties"])
    except (KeyError, TypeError, AttributeError):
        return frozenset()


def capabilities(kind: ServerKind, card: Mapping[str, Any]) -> Capabilities:
    """
    Return the capabilities of a model on a server of this kind.

    Args:
        card: The model as the server lists it.
    """
    if isinstance(own := card.get("unilect"), dict):
        return _unilect(own)
    parameters: dict[str, Support] = dict.fromkeys(kind.refused, "refused")
    if kind.takes is not None:
        parameters["lora"] = "refused"  # another adapter is another answer
    taken = _EVERYTHING & kind.takes if kind.takes is not None else frozenset()
    parameters |= dict.fromkeys(taken, "native")
    parameters |= dict.fromkeys(kind.renamed, "native")
    if kind.one_choice:
        parameters |= dict.fromkeys(("n", "echo"), "emulated")
    return Capabilities(
        parameters=parameters,
        passes_unknown=kind.takes is None,
        fans_out=kind.one_choice,
        continues=kind.continues is not None,
        resumes=kind.resumes,
        context=_context(card),
        vision=_sees(card),
        completions=kind.completions,
        embeddings=kind.embeddings,
        rerank=kind.rerank,
    )


def description(card: Mapping[str, Any]) -> Description:
    """Read the description of a model from its entry in the list of another unilect, or of llama-server; empty if invalid."""
    own, meta = card.get("unilect"), card.get("meta")
    told = own.get("details") if isinstance(own, dict) else None
    if told is None and isinstance(meta, dict):
        names = {"parameters": "n_params", "quantization": "ftype", "context": "n_ctx_train"}
        told = {ours: meta.get(theirs) for ours, theirs in names.items()}
    try:
        return msgspec.convert(told or {}, Description)
    except msgspec.ValidationError:
        return Description()


def wire_fields(kind: ServerKind, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request under the server's names, without those that it does not accept."""
    for ours, theirs in kind.renamed.items():
        if ours in fields:
            value = fields.pop(ours)
            fields.setdefault(theirs, value)
    if any(name in fields for name in kind.flags):
        _move_flags(kind, fields)
    if kind.takes is None:
        return fields
    return {name: value for name, value in fields.items() if name in kind.takes and value != _NULL}


def _move_flags(kind: ServerKind, fields: dict[str, Any]) -> None:
    """Tell the chat template what the server itself would drop."""
    given = _plain(fields.get("chat_template_kwargs")) or {}
    told = {name: _plain(fields.pop(name)) for name in kind.flags if name in fields}
    effort = told.get("reasoning_effort")
    if effort is not None and told.get("enable_thinking") is None:
        told["enable_thinking"] = effort != "none"
    fields["chat_template_kwargs"] = {k: v for k, v in told.items() if v is not None} | given


def _plain(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def more_fields(kind: ServerKind, request: Request) -> dict[str, Any]:
    """Make the fields that a server of this kind needs beside the request's own."""
    if not isinstance(request, ChatRequest):
        return {}
    more: dict[str, Any] = {}
    if kind.continues and not request.raw_fields and request.messages[-1].role == "assistant":
        more |= kind.continues
    if kind.tells_words and request.stop:
        more |= {"verbose": True, "response_fields": ["stopping_word"]}
    if not kind.names_tools and isinstance(request.tool_choice, ToolChoice):
        name = request.tool_choice.function.name
        only = [tool for tool in request.tools or () if tool.function.name == name]
        more |= {"tools": only, "tool_choice": "required"}
    return more


_NULL = msgspec.Raw(b"null")


def check(kind: ServerKind, request: TextRequest) -> None:
    """
    Refuse parameters that a server of this kind would drop, or that would crash it.

    Raises:
        InvalidRequest: Names the parameter.
    """
    refused, where = kind.refused_in_completions, "plain completions"
    if isinstance(request, ChatRequest):
        refused, where = kind.refused_in_chat, "a chat"
        if kind.needs_user and not any(message.role == "user" for message in request.messages):
            raise InvalidRequest(
                f"`messages` has no user message, which {kind.name} requires.", param="messages"
            )
    elif kind.one_prompt and len(request.prompts) > 1:
        raise InvalidRequest(
            f"`prompt` holds {len(request.prompts)} prompts; {kind.name} accepts one. Send them one by one.",
            param="prompt",
        )
    for name in refused:
        if not is_neutral(request, name):
            raise refusal(name, f"{kind.name} drops it in {where}")
    limit = request.token_limit
    if limit is not None and limit < kind.least_tokens:
        raise InvalidRequest(
            f"`max_tokens` is {limit}; the minimum for {kind.name} is {kind.least_tokens}.",
            param="max_tokens",
        )


def _unilect(own: Mapping[str, Any]) -> Capabilities:
    """Return the capabilities that another unilect reports; its emulated parameters are native here."""
    told, names, thinking = (own.get(name) for name in ("parameters", "template_names", "thinking"))
    parameters: dict[str, Support] = {
        name: "refused" if support == "refused" else "native"
        for name, support in (told.items() if isinstance(told, dict) else ())
    }
    return Capabilities(
        parameters=parameters,
        passes_unknown=own.get("unknown_parameters") == "passed on",
        context=_number(own.get("context")),
        vision=own.get("vision") is not False,
        continues=own.get("continues") is True,
        resumes="both",
        thinking=thinking if isinstance(thinking, bool) else None,
        template_names=frozenset(map(str, names)) if isinstance(names, list) else None,
        chat=own.get("chat") is not False,
        completions=own.get("completions") is not False,
        embeddings=own.get("embeddings") is not False,
        rerank=own.get("rerank") is True,
    )


def _context(card: Mapping[str, Any]) -> int | None:
    """Return the context size of a model, under any of the servers' names for it."""
    meta = card.get("meta")
    found = [card.get(name) for name in _CONTEXTS]
    if isinstance(meta, dict):
        found.append(meta.get("n_ctx"))
    return next((number for value in found if (number := _number(value))), None)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _sees(card: Mapping[str, Any]) -> bool:
    """Return False if the server reports that a model does not support images."""
    architecture = card.get("architecture")
    inputs = architecture.get("input_modalities") if isinstance(architecture, dict) else None
    return "image" in inputs if isinstance(inputs, list) else True
