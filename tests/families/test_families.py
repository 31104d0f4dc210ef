"""Tests of unilect.families: what models are told of tools, and that each family's calls are read by its own scanner."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect import families
from unilect.core.events import Choice, TextDelta, fold
from unilect.core.requests import FunctionCall, FunctionDefinition, Message, MessageToolCall, Tool
from unilect.families import PLAIN, Reading
from unilect.templates.chat import find as template
from unilect.tools.conversation import rewrite_as_text

FORMS = {family.name: family for family in families.FAMILIES}

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "days": {"type": "integer"},
        "units": {"type": "string", "enum": ["C", "F"]},
        "near": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
    },
    "required": ["city"],
}
TOOLS = [
    Tool(FunctionDefinition("get_weather", "Tells the weather.\nOf a city.", WEATHER)),
    Tool(FunctionDefinition("now")),
]
NAMES: dict[str, Any] = {tool.function.name: tool.function.parameters for tool in TOOLS}
PARIS = {"city": "Paris", "days": 2}


def parser_of(form: str, tools: Any, most: int | None = None) -> Any:
    """What reads answers in a form."""
    ids = itertools.count()
    reading = Reading(family=FORMS[form], tools=tools, thinking=True, most=most, bare=True)
    return reading.scanner(lambda: f"call_{next(ids)}")


def read(form: str, text: str, size: int = 1000, most: int | None = None) -> Choice:
    """What an answer in a form says that comes in pieces of this size."""
    parser = parser_of(form, NAMES, most)
    batches = [parser.add(text[at : at + size]) for at in range(0, len(text), size)]
    choices = fold([*batches, parser.end()]).choices
    return choices[0] if choices else Choice(0)


def calls(choice: Choice) -> list[tuple[str, Any]]:
    """The calls of an answer, their arguments decoded."""
    return [(call.name, json.loads(call.arguments)) for call in choice.tool_calls]


#: What models of each family write, as their templates write it back to them; `forms` has the address of each.
WIRE = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'),
    ("qwen-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}'),
    ("llama3", '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris", "days": 2}}'),
    ("llama4", "[get_weather(city='Paris', days=2)]"),
    ("llama4", "[\u00a0get_weather(city='Paris', days=2)\u3000]"),
    ("llama4", '<|python_start|>[get_weather(city="Paris", days=2)]<|python_end|>'),
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'),
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}, "id": "abcdefghi"}]'),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}'),
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris", "days": 2}'),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    ("dsml", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'),
    ("chatglm3", "get_weather\n```python\ntool_call(city='Paris', days=2)\n```"),
    ("glm", 'get_weather\n{"city": "Paris", "days": 2}'),
    ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"),
    ("phi", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]<|/tool_call|>'),
    ("phi", '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}<|/tool_call|>'),
    ("gemma", "[get_weather(city='Paris', days=2)]"),
    ("gemma", "```tool_code\nget_weather(city='Paris', days=2)\n```"),
    ("gemma", '```json\n{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}\n```'),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>'),
    ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'),
    ("kimi", '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|><|tool_calls_section_end|>'),
    ("kimi3", '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'),
    ("kimi3", '<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>json type="object"<|sep|>{"city": "Paris", "days": 2}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>'),
    ("harmony", '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris", "days": 2}<|call|>'),
    ("harmony", '<|channel|>analysis<|message|>Let me look.<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Paris", "days": 2}'),
    ("minimax", '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>'),
    ("lfm2", "<|tool_call_start|>[get_weather(city='Paris', days=2)]<|tool_call_end|>"),
    ("lfm2", '<|tool_call_start|>[get_weather(city="Paris", days=2)]<|tool_call_end|>'),
    ("seed", "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>2</parameter>\n</function>\n</seed:tool_call>"),
    ("step3", '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter><steptml:parameter name="days">2</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>'),
    ("command", '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", "days": 2}}]<|END_ACTION|>'),
    ("command", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", "days": 2}}\n]<|END_ACTION|>'),
    ("apertus", '<|tools_prefix|>[{"get_weather": {"city": "Paris", "days": 2}}]<|tools_suffix|>'),
    ("nemotron", '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]</TOOLCALL>'),
    ("jamba", '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]</tool_calls>'),
    ("jamba", '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'),
    ("jamba", '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_calls>'),
    ("apriel", '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]</tool_calls>'),
    ("hunyuan", '<tool_calls>\n<tool_call>get_weather\n```json\n{"city": "Paris", "days": 2}\n```</tool_call>\n</tool_calls>'),
    ("olmo3", "<function_calls>\nget_weather(city='Paris', days=2)\n</function_calls>"),
    ("minicpm", '<function name="get_weather"><param name="city"><![CDATA[Paris]]></param><param name="days"><![CDATA[2]]></param></function>'),
    ("minicpm", '<function name="get_weather"><param name="city">Paris</param><param name="days">2</param></function>'),
    ("gigachat", '<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'),
    ("functools", 'functools[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'),
    ("phi", '<|tool_call|>[{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}}]<|/tool_call|>'),
    ("qwen-coder", "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"),
    ("llama3", '<|python_tag|>get_weather.call(city="Paris", days=2)'),
    ("minimax3", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>'),
    ("hunyuan3", "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"),
    ("solar", '<|tool_calls|><|tool_call:begin|>call0<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris", "days": 2}<|tool_call:end|><|calls|>'),
    ("command-r", 'Action:\n```json\n[{"tool_name": "get_weather", "parameters": {"city": "Paris", "days": 2}}]\n```'),
    ("gigachat3", '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'),
    ("functionary", '>>>get_weather\n{"city": "Paris", "days": 2}'),
    ("muse", ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'),
    ("harmony", ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris", "days": 2}'),
    ("plain", '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'),
    ("plain", '```json\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n```'),
]  # fmt: skip


def cut(form: str, text: str, at: int, tools: Any = NAMES) -> Choice:
    """What an answer in a form says that comes in two pieces."""
    reader = parser_of(form, tools)
    choices = fold([reader.add(text[:at]), reader.add(text[at:]), reader.end()]).choices
    return choices[0] if choices else Choice(0)


@pytest.mark.parametrize(("form", "text"), WIRE)
def test_what_models_write(form: str, text: str) -> None:
    """A call is read in every form that models of the family write it in, wherever it is cut, and letter by letter."""
    told = [read(form, text, 1), *(cut(form, text, at) for at in range(1, len(text) + 1))]

    for choice in told:
        assert [("get_weather", PARIS)] == calls(choice)
        assert not choice.text


@pytest.mark.parametrize(("form", "text"), WIRE)
def test_a_call_that_a_stop_word_cuts(form: str, text: str) -> None:
    """Wherever a stop word cuts a call, it is none, or has all its arguments: none is ever told with a part of one, of an unknown family neither."""
    for reader, at in itertools.product({form, "plain"}, range(len(text))):
        parser = parser_of(reader, NAMES)
        for choice in fold([parser.add(text[:at]), parser.end(is_cut=True, by_word=True)]).choices:
            assert calls(choice) in ([], [("get_weather", PARIS)]), (reader, text[:at])


#: Without a mark it shows late that an answer is a call.
BARE = [(form, text) for form, text in WIRE if form in ("chatglm3", "glm") or (text[0] in "{[`" and not text.startswith("[TOOL"))]  # fmt: skip


@pytest.mark.parametrize(("form", "text"), [one for one in WIRE if one not in BARE])  # fmt: skip
def test_a_call_that_a_limit_cuts(form: str, text: str) -> None:
    """Wherever a limit cuts a call, nothing of it is text: its name is told once it is known, and arguments that are whole or no JSON."""
    told = []
    for at in range(1, len(text)):
        parser = parser_of(form, NAMES)
        choices = fold([parser.add(text[:at]), parser.end(is_cut=True)]).choices
        choice = choices[0] if choices else Choice(0)
        assert ((choice.text or "").strip() or "a").isalpha(), text[
            :at
        ]  # as the beginning of `functools[` is
        for call in choice.tool_calls:
            told.append(call.arguments)
            assert "get_weather" == call.name
            assert call.arguments
            assert call.arguments in PARIS_WRITTEN or not is_json(call.arguments), text[:at]

    assert len(told) > 12


PARIS_WRITTEN = ('{"city": "Paris", "days": 2}', "{}")


def is_json(text: str) -> bool:
    """Return True for a text that is one JSON value."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("form", ["dsml", "glm45", "kimi", "kimi3", "qwen-coder"])
def test_the_second_of_two_calls_is_cut(form: str) -> None:
    """Of two calls that stand one after the other the first is told also where the second is cut."""
    both = FORMS[form].written.calls_text(
        [("get_weather", PARIS), ("get_weather", {"city": "Rome"})]
    )
    parser = parser_of(form, NAMES)
    (choice,) = fold(
        [parser.add(both[: both.index("Rome") + 2]), parser.end(is_cut=True, by_word=True)]
    ).choices

    assert [("get_weather", PARIS)] == calls(choice)


#: How families call a tool that there is not; behind a mark of theirs such a call is one.
UNKNOWN = [text.replace("get_weather", "get_rain") for _, text in WIRE]
MARKED = ("<tool_call>", "<|python_tag|>", "<|python_start|>", "[TOOL_CALLS]", "<｜tool▁calls▁begin｜>", "<｜DSML｜", "<|tool_call", "<|open|>tools", "to=functions.", "<minimax:", "<seed:", "<｜tool_calls", "<|START_ACTION|>", "<TOOLCALL>", "<tool_calls>", "<function_calls>", "<|function_call|>", "functools[", "<tool_calls:", "<|tool_calls|>", "Action:", "function call<", ">>>", "to=get", "]<]")  # fmt: skip


def test_tools_that_there_are_not() -> None:
    """A call of an unknown tool is told as a call where the family marks calls, for its client to answer, and else as text."""
    for (form, _), text in zip(WIRE, UNKNOWN, strict=True):
        choice, whole = cut(form, text, len(text) // 2), cut(form, text, len(text))
        assert whole == choice, text
        if any(mark in text for mark in MARKED):
            assert ([("get_rain", PARIS)], None) == (calls(choice), choice.text), text
        else:
            assert ([], text) == (choice.tool_calls, choice.text)


def test_an_unknown_family() -> None:
    """A model whose family is not known may mark its calls in its own way, whatever it was told."""
    for _, text in WIRE:
        choice = cut("plain", text, len(text) // 2)
        if any(family.begin in text for family in PLAIN.calls) and not text.startswith("<|open|>think"):  # fmt: skip
            assert ([("get_weather", PARIS)], None) == (calls(choice), choice.text), text
        else:
            assert choice == cut("plain", text, len(text)), text


BARE = [
    ("hermes", '\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n'),
    ("mistral", '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'),
    ("phi", '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'),
    ("granite", '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'),
    ("qwen-coder", "```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n```"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text"), BARE)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_without_marks(form: str, text: str, size: int) -> None:
    """A call whose marks a server has dropped as special tokens is a call all the same."""
    choice = read(form, text, size)

    assert ([("get_weather", PARIS)], None) == (calls(choice), choice.text)


def test_what_is_written() -> None:
    """A call of the conversation's history is written as the first sample of its family has it."""
    for form, family in FORMS.items():
        sample = next(text for name, text in WIRE if name == form)
        assert sample == family.written.calls_text([("get_weather", PARIS)])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("aé中 '\"\\{}[]:,", max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["k", "l"]), inner),
    max_leaves=6,
)  # fmt: skip
ARGUMENTS = st.fixed_dictionaries(
    {"city": st.text("aé中 '\"\\{}[]:,", min_size=1, max_size=12).map(str.strip)},
    optional={"days": st.integers(-99, 99), "more": st.dictionaries(st.sampled_from(["k", "l"]), VALUES)},
)  # fmt: skip


@pytest.mark.heavy(but=9)
@pytest.mark.parametrize("form", sorted(FORMS))
@given(first=ARGUMENTS, second=ARGUMENTS)
def test_there_and_back(form: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    """What is written of calls is read again as the same calls, two of them where the family writes several."""
    if form == "minimax3":  # elements within elements, of which no schema tells the types
        first, second = ({**one, "more": {}} for one in (first, second))
    given = [("get_weather", first), ("get_weather", second)]
    several = given if form not in ("chatglm3", "glm") else given[:1]  # it makes one call a turn

    assert several == calls(read(form, FORMS[form].written.calls_text(several), 5))


@pytest.mark.parametrize(
    "text", ["Hello there.", "2 < 3, and [1] is {x}", "Look:\n```json\n{}\n```"]
)
def test_plain_answers(text: str) -> None:
    """An answer without a call is told as it is, and most of it at once."""
    for form in FORMS:
        choice = read(form, text, 1)
        parser = parser_of(form, NAMES)
        early = [event.text for letter in "Hello there" for event in parser.add(letter) if isinstance(event, TextDelta)]  # fmt: skip
        assert (text, []) == (choice.text, choice.tool_calls), form
        assert "Hello there" == "".join(early), form


def test_what_is_told_of_tools() -> None:
    """Every tool is told with its name, its description and its arguments, also one that has neither; a result's text whole, even where it looks like a place to be filled."""
    for form, family in FORMS.items():
        told = family.written.tools_text(TOOLS)
        for word in ("get_weather", "Tells the weather.", "city", "days", "units", "now"):
            assert word in told, form
        result = family.written.result("get_weather", 0, "{name} 21 degrees")
        assert "{name} 21 degrees" in result, form


def test_typescript() -> None:
    """gpt-oss is told of tools in TypeScript, with what has no word there as a schema in a comment."""
    told = FORMS["harmony"].written.tools_text(TOOLS)

    assert told.startswith(
        "# Tools\n\n## functions\n\nnamespace functions {\n\n// Tells the weather.\n// Of a city.\n"
    )
    assert (
        '// Where.\ncity: string,\ndays?: number,\nunits?: "C" | "F",\nnear?: string[],\n' in told
    )
    assert 'more?: any /* {"type": "object"} */,\n}) => any;\n\ntype now = () => any;' in told


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("Qwen2.5-7B-Instruct", ""), "hermes"),
        (("Qwen3-Coder-30B", ""), "qwen-coder"),
        (("Meta-Llama-3.1-8B", ""), "llama3"),
        (("Llama-4-Scout", ""), "llama4"),
        (("mixtral-8x7b", ""), "mistral"),
        (("DeepSeek-V3.1", ""), "deepseek"),
        (("deepseek-v3.2-exp", ""), "dsml"),
        (("DeepSeek-R1-Distill-Qwen-7B", ""), "plain"),
        (("chatglm3-6b", ""), "chatglm3"),
        (("glm-4-9b", ""), "glm"),
        (("GLM-4.6", ""), "glm45"),
        (("Phi-4-mini-instruct", ""), "phi"),
        (("gemma-3-4b-it", ""), "gemma"),
        (("gemma-4-31B-it", ""), "gemma4"),
        (("granite-3.3-8b", ""), "granite"),
        (("granite-4.0-h-tiny", ""), "hermes"),
        (("granite4:tiny-h", ""), "hermes"),
        (("Kimi-K2-Instruct", ""), "kimi"),
        (("Kimi-K3", ""), "kimi3"),
        (("gpt-oss-20b", ""), "harmony"),
        (("tiny", "qwen-7b-chat"), "hermes"),
        (("MiniMax-M2", ""), "minimax"),
        (("LFM2-8B-A1B", ""), "lfm2"),
        (("Seed-OSS-36B-Instruct", ""), "seed"),
        (("NVIDIA-Nemotron-Nano-9B-v2", ""), "nemotron"),
        (("NVIDIA-Nemotron-3-Nano-30B", ""), "qwen-coder"),
        (("c4ai-command-a-03-2025", ""), "command"),
        (("Hunyuan-A13B-Instruct", ""), "hunyuan"),
        (("Llama-xLAM-2-8b-fc-r", ""), "jamba"),
        (("Olmo-3-7B-Instruct", ""), "olmo3"),
        (("Apertus-8B-Instruct", ""), "apertus"),
        (("step3", ""), "step3"),
        (("Magistral-Small-2509", ""), "mistral"),
        (("vicuna-13b", "vicuna_v1.1"), ""),
    ],
)
def test_names(names: tuple[str, ...], form: str) -> None:
    """The names of a model and of its template show the family's form."""
    assert form == families.name_of(families.of_name(*names))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (template("chatml").text, "hermes"),
        (template("alpaca").text, ""),
        (template("vicuna").text, ""),
        ("<start_of_turn>user", "gemma"),
        ("<|turn>system", "gemma4"),
        ("<|im_user|>user<|im_middle|>", "kimi"),
        ("{{ '<|open|>' + tag }}{{ '<|sep|>' }}{{ '<|end_of_msg|>' }}", "kimi3"),
        ("<|start_of_role|>system<|end_of_role|>{{ '<tool_call>' }}", "hermes"),
        ("<|start_header_id|>", "llama3"),
        ("<|header_start|>", "llama4"),
        ("<|start_of_role|>", "granite"),
        ("<｜User｜>", "deepseek"),
        ("{% set dsml_token = '｜DSML｜' %}<｜User｜>", "dsml"),
        ("<|channel|>analysis", "harmony"),
        ("[gMASK]<sop>", "glm"),
    ],
)
def test_templates(text: str, form: str) -> None:
    """A chat template that knows no tools shows its family's form by its marks, where it has some."""
    assert form == families.name_of(families.of_template(text))


def test_granite() -> None:
    """A template of Granite 4 is read as Hermes', one of Granite 3 as its own."""
    roles = "<|start_of_role|>system<|end_of_role|>"

    found = [families.of_template(roles + mark) for mark in ("<tool_call>", "<|tool_call|>")]
    assert [FORMS["hermes"], FORMS["granite"]] == found


def test_kimi_k3() -> None:
    """Thoughts, text and two calls are told apart, with every type of value, whatever the tags' quotes hold."""
    given = {
        "a": "x < y & z",
        "b": 1.5,
        "c": True,
        "d": None,
        "e": {"k": [1]},
        "f": ["l"],
        'g"&': "\n",
    }
    written = FORMS["kimi3"].written.calls_text([("now", given), ("now", {})], first=7)
    text = (
        "I think.<|close|>think<|sep|><|open|>response<|sep|>I look.\n<|close|>response<|sep|>"
        f"{written}<|close|>message<|sep|><|end_of_msg|>"
    )

    assert 'call tool="now" index="1"' in written
    assert 'call tool="now" index="2"' in written
    assert 'key="g&quot;&amp;" type="string"' in written
    for at in range(1, len(text)):
        reading = Reading(family=FORMS["kimi3"], tools=NAMES, thinking=True, begun=True)
        reader = reading.scanner(str)
        (choice,) = fold([reader.add(text[:at]), reader.add(text[at:]), reader.end()]).choices
        assert ("I think.", "I look.\n") == (choice.reasoning, choice.text)
        assert [("now", given), ("now", {})] == calls(choice)


def test_turns_of_kimi() -> None:
    """Kimi's tools and results stand in turns of their own, and what the user says behind results in another."""
    call = MessageToolCall("c", FunctionCall("now", "{}"))
    history = [
        Message("user", "When?"),
        Message("assistant", None, tool_calls=[call, MessageToolCall("d", FunctionCall("now", "{}"))]),
        Message("tool", "noon", tool_call_id="d"),
        Message("tool", "night", tool_call_id="c"),
        Message("user", "And?"),
    ]  # fmt: skip
    k2, k3 = (
        rewrite_as_text(history, FORMS[form].written)[-1].content for form in ("kimi", "kimi3")
    )
    end = "<|close|>message<|sep|><|end_of_msg|><|open|>message"

    assert k2 == (
        "<|im_end|><|im_system|>tool<|im_middle|>## Return of functions.now:1\nnoon"
        "<|im_end|><|im_system|>tool<|im_middle|>## Return of functions.now:0\nnight"
        "<|im_end|><|im_user|>user<|im_middle|>And?"
    )
    assert k3 == (
        f'{end} role="tool" tool="now" index="2"<|sep|>noon'
        f'{end} role="tool" tool="now" index="1"<|sep|>night{end} role="user"<|sep|>And?'
    )


def test_the_plain_form() -> None:
    """A form that is not known is the plain one."""
    assert FORMS["plain"] is families.find("") is families.find("nobody's")


@pytest.mark.parametrize(
    "piece",
    [
        '<|open|>call tool="now"<|sep|>', '<|open|>argument key="', '<|open|>argument key="a"<|sep|>',
        "<｜DSML｜parameter name=\"a\" string=\"true\">", "call:get_weather{", '<|"|>', "<|tool_call_begin|>",
        "<|channel|>", "<|start|>assistant to=functions.get_weather", "```json\n", "<|message|>", "{a:", "[get_weather(",
    ],
)  # fmt: skip
def test_hostile_answers(piece: str) -> None:
    """An answer of one mark over and over is no call, and nothing of it is lost."""
    begins = {"gemma4": "<|tool_call>", "glm45": "<tool_call>"}
    for form in ("dsml", "gemma4", "kimi", "kimi3", "plain", "glm45"):
        text = begins.get(form, FORMS[form].written.calls[0]) + (piece * 2000).rstrip()
        choice = read(form, text, 4000)
        assert ([], text) == (choice.tool_calls, choice.text), form


@pytest.mark.parametrize("mark", ["<|channel|>", "<|start|>assistant", "<|message|>", "<|end|>"])
def test_hostile_channels(mark: str) -> None:
    """Marks of channels over and over say nothing, and what follows them is told."""
    assert "Hi." == read("harmony", mark * 2000 + "<|channel|>final<|message|>Hi.", 4000).text


def test_channels_as_they_come() -> None:
    """Thoughts, a remark, two calls and the answer are told in their order, the calls up to the most that are wanted."""
    call = "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    text = (
        "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"{call}{call}<|start|>assistant<|channel|>final<|message|>It is late.<|return|>"
    )
    choice, one = read("harmony", text, 3), read("harmony", text, 3, most=1)

    assert ("I think.", "I look.It is late.") == (choice.reasoning, choice.text)
    assert [("now", {})] * 2 == calls(choice)
    assert [("now", {})] == calls(one)


#: What an argument may hold that calls are written with, too.
HELD = [
    "</tool_call>",
    "print('</tool_call>')\nprint()\n",
    "print('</parameter></tool_call>')\n",
    "<parameter=x>",
    "</parameter>",
    "</function>",
    "use <function=now> here",
    "</arg_value> and <arg_key>",
    '5" pipe </tool_call>',
    "<|call|>",
    "<|channel|>final<|message|>",
    "a \\",
    "\n",
]


@pytest.mark.parametrize("form", FORMS)
def test_arguments_that_hold_marks(form: str) -> None:
    """A mark in an argument ends no call: the call is told whole, and so is the next one."""
    for value, size in itertools.product(HELD, (1, 7, 1000)):
        made = [("get_weather", {"city": value}), ("now", {})]
        choice = read(form, FORMS[form].written.calls_text(made), size)
        assert (made, "") == (calls(choice), choice.text or ""), size


@pytest.mark.parametrize("form", ["hermes", "qwen-coder", "glm45", "harmony", "llama3", "mistral"])
def test_arguments_that_hold_calls(form: str) -> None:
    """An argument may hold calls in any form, its own one as well."""
    for other in FORMS.values():
        value = f"Write:\n{other.written.calls_text([('get_weather', PARIS), ('now', {})])}\nThat is all.\n"
        made = [("get_weather", {"city": value}), ("now", {})]
        assert made == calls(read(form, FORMS[form].written.calls_text(made), 5))
