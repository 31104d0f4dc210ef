"""
The typed requests of clients. OpenAI's names are our names; a dialect with other names translates at its border.

The Structs are decoded straight from the body, so their annotations are the validation and the schema of /openapi.json.
`raw_fields` keeps every top-level field of the body as it was written: an unknown field is passed on to an upstream that may
know it, byte for byte. `changed` changes a field, and keeps both in step.

Sources: https://platform.openai.com/docs/api-reference (chat, completions, embeddings); the local sampling fields are llama.cpp's and vLLM's.
"""

from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, cast

import msgspec
from msgspec import Meta, Raw, Struct

MAX_MESSAGES = 2048  # a template over more blocks for seconds (RELIABILITY: 100,000 messages held a peer for 10 s)
MAX_TOKENS_FIELD = 2**31 - 1
MAX_CHOICES, MAX_PARTS = 16, 1024
MAX_TOOLS = MAX_SNIPPETS = 128
SYSTEM_ROLES, RESULT_ROLES = ("system", "developer"), ("tool", "function")
MAX_ADAPTERS, MAX_LORA_SCALE = 64, 100
RAW_FIELDS = "unilect:raw_fields"  # not `raw_fields`: a client may send a field of that name, which is unknown like any other

Text = Annotated[str, Meta(max_length=16 * 1024 * 1024)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS_FIELD)]
Limit = Annotated[int, Meta(ge=-1, le=MAX_TOKENS_FIELD)]  # -1 is none, as llama.cpp has it
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
StopWord = Annotated[str, Meta(min_length=1, max_length=256)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKENS_FIELD)]
MAX_LOGPROBS = 20
ANY_SEED = -1  # as llama.cpp has it
MAX_PROBS = 1000  # likeliest tokens of a place; more would swell a stream
#: Of the native dialect, which answers for them itself; every other backend and dialect refuses them.
LLAMACPP_NATIVE = ("response_fields",)
#: llama.cpp's names of its samplers, and a text of their letters; a name that it does not know it would leave out.
Sampler = Literal[
    "penalties", "dry", "top_k", "typ_p", "top_p", "top_n_sigma", "min_p", "temperature", "xtc", "infill", "adaptive_p",
    "typical_p", "tfs_z",  # older: another name of `typ_p`, and one that it no longer has
]  # fmt: skip
#: Without a pattern: msgspec.inspect crashes on a list beside a text that has one.
SamplerLetters = Annotated[str, Meta(max_length=32)]
SAMPLER_LETTERS = "dkypsmtxiea"


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text in a message's content."""

    text: Text


class ImageUrl(Struct, frozen=True):
    """An image, as a `data:` URL."""

    url: Text
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image in a message's content."""

    image_url: ImageUrl


class InputAudio(Struct, frozen=True):
    """Sound, as base64."""

    data: Text
    format: Literal["wav", "mp3"]


class AudioPart(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """Sound in a message's content."""

    input_audio: InputAudio


class FilePart(Struct, frozen=True, tag_field="type", tag="file"):
    """A file in a message's content; passed on, never read here."""

    file: dict[str, Any]


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """An earlier refusal of the assistant, given back as history."""

    refusal: Text


Part: TypeAlias = TextPart | ImagePart | AudioPart | FilePart | RefusalPart


class FunctionCall(Struct, frozen=True):
    """A call that the assistant made; `arguments` is JSON text."""

    name: str
    arguments: Text


class MessageToolCall(Struct, frozen=True):
    """A tool call in an assistant's message, given back as history."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(Struct, frozen=True, omit_defaults=True):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[Part], Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    audio: dict[str, Any] | None = None
    message: Text | None = None  # what older clients write for `content`

    @property
    def is_of_tools(self) -> bool:
        """True if it has calls of tools, or is the result of one."""
        return self.role in RESULT_ROLES or bool(self.tool_calls) or self.function_call is not None


class FunctionDefinition(Struct, frozen=True, omit_defaults=True):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True):
    """A tool that the model may call."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(Struct, frozen=True):
    """The name of a function."""

    name: str


class ToolChoice(Struct, frozen=True):
    """The tool that must be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


class TextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object. `schema` is llama.cpp's older way to give a schema."""

    schema: dict[str, Any] | None = None


class JsonSchema(Struct, frozen=True, omit_defaults=True):
    """A JSON Schema that the answer must satisfy; llama.cpp's clients give it no name."""

    name: str = ""
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(
    Struct, frozen=True, omit_defaults=True, tag_field="type", tag="json_schema"
):
    """JSON that satisfies a schema; `schema` is how llama.cpp's clients write it, and is put into `json_schema`."""

    json_schema: JsonSchema = JsonSchema()
    schema: dict[str, Any] | None = None


class JsonFormat(Struct, frozen=True, tag_field="type", tag="json"):
    """JSON that satisfies a schema, as TGI has it."""

    value: dict[str, Any]


class RegexFormat(Struct, frozen=True, tag_field="type", tag="regex"):
    """A text that a regular expression matches as a whole; TGI calls it `value`."""

    pattern: str | None = None
    value: str | None = None


class GrammarFormat(Struct, frozen=True, tag_field="type", tag="grammar"):
    """A text that a grammar makes, as Fireworks has it."""

    grammar: str


class StructuralTagFormat(Struct, frozen=True, tag_field="type", tag="structural_tag"):
    """Schemas between tags, as vLLM and SGLang have it; passed on, never read here."""


ResponseFormat: TypeAlias = (
    TextFormat
    | JsonObjectFormat
    | JsonSchemaFormat
    | JsonFormat
    | RegexFormat
    | GrammarFormat
    | StructuralTagFormat
)


class StreamOptions(Struct, frozen=True, omit_defaults=True):
    """The options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Request(Struct, frozen=True, kw_only=True):
    """
    The fields that every request has.

    Attributes:
        model: The model's name as the client sent it; None means the default model.
        raw_fields: The body's top-level fields as they were written; empty when another dialect built the request.
    """

    model: str | None = None
    user: str | None = None
    raw_fields: dict[str, Raw] = msgspec.field(default_factory=dict, name=RAW_FIELDS)

    #: Fields that unilect itself answers for, which no backend is asked about.
    gateway_fields: ClassVar[frozenset[str]] = frozenset({"model"})

    def changed(self, **changes: Any) -> Self:
        """A copy with these fields changed, in `raw_fields` too where there is one; None removes a field from it."""
        raw_fields = dict(self.raw_fields)
        for name, value in changes.items() if raw_fields else ():
            if value is None:
                raw_fields.pop(name, None)
            else:
                raw_fields[name] = Raw(msgspec.json.encode(value))
        return msgspec.structs.replace(self, raw_fields=raw_fields, **changes)


class Call(Request, frozen=True, kw_only=True):
    """
    A call that makes no answer, such as a token count.

    Attributes:
        counts: It is a request of its own, and no part of one that is counted besides.
    """

    counts: bool = True


class _CommonRequest(Request, frozen=True, kw_only=True):
    """The fields that chat and plain completions have in common, without llama.cpp's own."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    stop: StopWord | Annotated[list[StopWord], Meta(max_length=16)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)] | bool], Meta(max_length=1024)]
        | None
    ) = None  # false, as llama.cpp has it, forbids a token
    # what local engines have beside OpenAI's fields
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=100)] | None = None
    response_format: ResponseFormat | None = None
    grammar: Annotated[str, Meta(max_length=64 * 1024)] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    tokenize: bool | None = None  # the prompt's ids come back as `promptToken`
    best_of: Choices | None = None
    num_beams: Annotated[int, Meta(ge=1, le=64)] | None = None
    use_beam_search: bool | None = None
    # older names, which `dialects/openai/_older.py` turns into `max_tokens` and `temperature`
    max_new_tokens: Count | None = None
    n_predict: Annotated[int, Meta(ge=-2, le=MAX_TOKENS_FIELD)] | None = None
    max_length: Count | None = None
    do_sample: bool | None = None
    # about the caller or the bookkeeping, not about the answer
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    n_cmpl: Choices | None = None  # an older name of `n`, see `dialects/openai/_older.py`


class LoraScale(Struct, frozen=True):
    """The scale of an adapter for a request; adapters that are left out have 0."""

    id: Count
    scale: Annotated[float, Meta(ge=-MAX_LORA_SCALE, le=MAX_LORA_SCALE)]


class GenerationRequest(_CommonRequest, frozen=True, kw_only=True):
    """The fields that chat and plain completions have in common; those here are llama.cpp's own, in its names."""

    n_probs: Annotated[int, Meta(ge=0, le=MAX_PROBS)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    samplers: Annotated[list[Sampler], Meta(max_length=32)] | SamplerLetters | None = None
    min_keep: Count | None = None
    dynatemp_range: Annotated[float, Meta(ge=0, le=10)] | None = None
    dynatemp_exponent: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=1000)] | None = None
    xtc_probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    dry_penalty_last_n: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    dry_sequence_breakers: (
        Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(min_length=1, max_length=64)]
        | None
    ) = None
    adaptive_target: Annotated[float, Meta(ge=-1, le=1)] | None = None
    adaptive_decay: Annotated[float, Meta(ge=0, lt=1)] | None = None
    t_max_predict_ms: Annotated[int, Meta(ge=-1, le=MAX_TOKENS_FIELD)] | None = None
    n_indent: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    n_keep: Annotated[int, Meta(ge=-1, le=MAX_TOKENS_FIELD)] | None = None
    n_discard: Count | None = None
    id_slot: Annotated[int, Meta(ge=-1, le=MAX_TOKENS_FIELD)] | None = None
    lora: Annotated[list[LoraScale], Meta(max_length=MAX_ADAPTERS)] | None = None

    gateway_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "stream", "stream_options"}
        | {"max_new_tokens", "n_predict", "max_length", "do_sample", "n_cmpl"}
    )

    @property
    def token_limit(self) -> int | None:
        """The most tokens to generate for one choice, or its older name; None for as many as fit."""
        newer = self.max_completion_tokens
        limit = self.max_tokens if newer is None else newer
        return None if limit == -1 else limit

    @property
    def stop_words(self) -> list[str]:
        """The stop words, as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of `response_format` that an answer must satisfy."""
        match self.response_format:
            case JsonObjectFormat(schema):
                return schema or {"type": "object"}
            case JsonSchemaFormat(json_schema):
                return json_schema.schema or {}
        return None


#: What llama.cpp's samplers, schemas and bookkeeping have beside what others have; a backend that lacks them refuses them.
LLAMACPP_PARAMETERS = tuple(name for name in GenerationRequest.__struct_fields__ if name not in _CommonRequest.__struct_fields__)  # fmt: skip


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None  # the same by itself, as Qwen's servers have it
    # llama.cpp's, where the prompt ends and how thoughts are told; the second is transformers' and vLLM's, too
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None
    reasoning_format: Literal["", "none", "auto", "deepseek", "deepseek-legacy"] | None = None
    thinking_budget_tokens: Limit | None = None

    gateway_fields: ClassVar[frozenset[str]] = GenerationRequest.gateway_fields | {"messages"}


Prompt: TypeAlias = str | list[int]


class Snippet(Struct, frozen=True, omit_defaults=True):
    """A piece of another file, for what is to be filled in."""

    text: Text
    filename: Annotated[str, Meta(max_length=4096)] = ""


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/completions. `prompt` holds texts or token ids, one or many; `prompts` sorts that out."""

    prompt: Text | Annotated[list[Text | TokenId | list[TokenId]], Meta(max_length=65536)] | None
    suffix: Text | None = None
    input_extra: Annotated[list[Snippet], Meta(max_length=MAX_SNIPPETS)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None

    gateway_fields: ClassVar[frozenset[str]] = GenerationRequest.gateway_fields | {"prompt"}

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts one by one, each a text or a list of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        return one_by_one(self.prompt or [""])

    @property
    def fills_in(self) -> bool:
        """True where the answer stands between the prompt and the suffix, even an empty one."""
        return bool(self.suffix) or self.input_extra is not None


TextRequest: TypeAlias = ChatRequest | CompletionRequest


class EmbeddingRequest(Request, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: (
        Text | Annotated[list[Text | TokenId | list[TokenId]], Meta(min_length=1, max_length=65536)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None

    gateway_fields: ClassVar[frozenset[str]] = frozenset({"model", "input", "encoding_format"})

    @property
    def inputs(self) -> list[Prompt]:
        """The inputs one by one, each a text or a list of token ids."""
        return [self.input] if isinstance(self.input, str) else one_by_one(self.input)


class Embeddings(Struct, frozen=True):
    """
    The answer to an EmbeddingRequest.

    Attributes:
        vectors: (n_inputs, n_dimensions), in the order of the inputs.
        prompt_tokens: Tokens of all inputs together.
    """

    vectors: list[list[float]]
    prompt_tokens: int


def one_by_one(items: list[str | int | list[int]]) -> list[Prompt]:
    """
    A prompt list sorted out: a list of ids is one prompt, a list of texts or of lists of ids are many.

    Nothing is copied, and only the first item is looked at: a prompt of token ids may have a million, and is asked for several times
    of each request. A list that mixes them is refused where its body is decoded.
    """
    is_one = not items or isinstance(items[0], int)
    return [cast(list[int], items)] if is_one else cast(list[Prompt], items)
