"""
The forms of tools as text, for models whose backend takes none: what a model is told of its tools, how its earlier calls and their
results are written into the conversation, and by which parser its answer is read.

Marks, keys and the order of things are those that the family was trained with, as the templates of its models write them; the words
around the tools are ours, but for the fixed ones of GLM 4, Llama 3, Phi 4, Kimi and gpt-oss. A model of an unknown family is told a plain
form. Granite 4 has the form of Hermes.

Sources, by the name of the form (templates as published with the models, and their makers' pages):
hermes https://github.com/NousResearch/Hermes-Function-Calling, https://huggingface.co/Qwen/Qwen3-8B;
qwen-coder https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct;
llama3, llama4 https://www.llama.com/docs/model-cards-and-prompt-formats/;
mistral https://docs.mistral.ai/capabilities/function_calling/, https://github.com/mistralai/mistral-common;
deepseek https://huggingface.co/deepseek-ai/DeepSeek-V3.1; dsml https://huggingface.co/deepseek-ai/DeepSeek-V3.2;
chatglm3 https://github.com/THUDM/ChatGLM3/tree/main/tools_using_demo; glm https://huggingface.co/zai-org/GLM-4-9B-0414;
glm45 https://huggingface.co/zai-org/GLM-4.5; phi https://huggingface.co/microsoft/Phi-4-mini-instruct;
gemma https://ai.google.dev/gemma/docs/capabilities/function-calling; gemma4 https://huggingface.co/google/gemma-4-31B-it;
granite https://huggingface.co/ibm-granite/granite-3.3-8b-instruct; kimi https://huggingface.co/moonshotai/Kimi-K2-Instruct,
https://github.com/MoonshotAI/Kimi-K2/blob/main/docs/tool_call_guidance.md;
kimi3 https://github.com/ggml-org/llama.cpp/blob/master/models/templates/Kimi-K3.jinja;
harmony https://github.com/openai/harmony/blob/main/docs/format.md
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from unilect.requests import FunctionDefinition, Tool
from unilect.tools import _writing as write
from unilect.tools import parser as families
from unilect.tools._writing import Arguments, around, as_json, dumped
from unilect.tools.chatglm import HEADER, python_text
from unilect.tools.parser import Family


class Form(Struct, frozen=True, kw_only=True):
    """
    One form.

    Attributes:
        family: How an answer's calls are read.
        about: What stands before the tools.
        tool: A tool, as text.
        between: What stands between two tools.
        rules: What stands behind them.
        call: A call with its name, its arguments and its number, as text.
        calls: What stands before all calls of a turn, between two, and behind them.
        result: A result, with the name of its tool, its number and its text, as text.
        in_user: The model has no turn for a system: the tools stand in the user's first.
        tools_turn: What ends the system's turn and begins one for the tools, which stand behind its text then; empty where they stand in it.
        user_turn: What ends a result's turn and begins one of the user; empty where results stand in the user's.
        in_turn: Calls are counted from 1 in each turn; else from 0 in the conversation.
    """

    family: Family
    about: str
    tool: Callable[[FunctionDefinition], str]
    between: str = "\n"
    rules: str = ""
    call: Callable[[str, Arguments, int], str]
    calls: tuple[str, str, str] = ("", "\n", "")
    result: Callable[[str, int, str], str]
    in_user: bool = False
    tools_turn: str = ""
    user_turn: str = ""
    in_turn: bool = False

    def tools_text(self, tools: Sequence[Tool]) -> str:
        """What a model is told of its tools."""
        told = self.between.join(self.tool(tool.function) for tool in tools)
        return self.about + told + self.rules

    def calls_text(self, calls: Sequence[tuple[str, Arguments]], first: int = 0) -> str:
        """Calls of one turn, as the model would have written them; `first` calls were made before."""
        before, between, behind = self.calls
        told = [
            self.call(name, given, self.number(first, n)) for n, (name, given) in enumerate(calls)
        ]
        return before + between.join(told) + behind

    def number(self, first: int, place: int) -> int:
        """The number of a call at this place in a turn before which `first` calls were made."""
        return place + 1 if self.in_turn else first + place


def find(name: str) -> Form:
    """The form of this name; the plain one where there is none."""
    return FORMS.get(name, FORMS["plain"])


def of_names(*hints: str) -> str:
    """The name of the form that the names of a model, or of its template, show; empty where they show none."""
    return next(
        (form for hint in hints for piece, form in _NAMED if piece in hint.lower()[:256]), ""
    )


def of_template(template: str) -> str:
    """The name of the form of the family whose chat template this is; empty where it shows none."""
    return next((form for mark, form in _SHOWN if mark in template), "")


_K3_END = "<|close|>message<|sep|><|end_of_msg|>"
_IN_TAGS = around("<tool_response>\n", "\n</tool_response>")
_LISTED = "# Tools\n\nYou may call these functions:\n"
_PYTHONIC = (
    "\n\nTo call functions, answer with a list of calls as Python writes it and with nothing else: "
    "[name(argument=value), ...]. Do not use variables."
)

#: Every form, by its name.
FORMS: dict[str, Form] = {
    "plain": Form(
        family=families.PLAIN,
        about=_LISTED,
        tool=write.json_tool,
        rules='\n\nTo call one, answer with JSON and with nothing else, one line for each call:\n{"name": <name>, '
        '"arguments": <object>}\nThe result comes back to you. Where no function helps, answer in words.',
        call=as_json("", "arguments", ""),
        result=lambda name, number, text: f"The result of {name}:\n{text}",
    ),
    "hermes": Form(
        family=families.HERMES,
        about=f"{_LISTED}<tools>\n",
        tool=write.typed_tool,
        rules='\n</tools>\n\nTo call one, answer:\n<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>',
        call=as_json("<tool_call>\n", "arguments", "\n</tool_call>"),
        result=_IN_TAGS,
    ),
    "qwen-coder": Form(
        family=families.HERMES,
        about=f"{_LISTED}<tools>\n",
        tool=write.coder_tool,
        rules="\n</tools>\n\nTo call one, answer:\n<tool_call>\n<function=name>\n<parameter=name>\nvalue\n</parameter>\n"
        "</function>\n</tool_call>",
        call=write.coder_call,
        result=_IN_TAGS,
    ),
    "llama3": Form(
        family=families.LLAMA3,
        about="You may call these functions:\n\n",
        tool=write.indented_tool,
        between="\n\n",
        rules='\n\nTo call one, answer with JSON and with nothing else: {"name": function name, "parameters": dictionary of '
        "argument name and its value}. Do not use variables.",
        call=as_json("", "parameters", ""),
        calls=("", "; ", ""),
        result=lambda name, number, text: dumped({"output": text}),
    ),
    "llama4": Form(
        family=families.LLAMA4,
        about="You may call these functions:\n",
        tool=write.indented_tool,
        rules=_PYTHONIC,
        call=write.python_call,
        calls=("[", ", ", "]"),
        result=lambda name, number, text: dumped(text),
    ),
    "mistral": Form(
        family=families.MISTRAL,
        about="[AVAILABLE_TOOLS][",
        tool=write.typed_tool,
        between=", ",
        rules="][/AVAILABLE_TOOLS]",
        call=as_json("", "arguments", ""),
        calls=("[TOOL_CALLS][", ", ", "]"),
        result=lambda name, number, text: (
            f"[TOOL_RESULTS]{dumped({'content': text})}[/TOOL_RESULTS]"
        ),
        in_user=True,
    ),
    "deepseek": Form(
        family=families.DEEPSEEK,
        about="## Tools\nYou may call these functions:\n\n",
        tool=write.headed_tool,
        between="\n\n",
        rules="\n\nTo call some, write nothing but:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>"
        "arguments as JSON<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        call=lambda name, given, number: (
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumped(given)}<｜tool▁call▁end｜>"
        ),
        calls=("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
        result=around("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
    "dsml": Form(
        family=families.DSML,
        about="## Tools\n\nYou may call these functions:\n<functions>\n",
        tool=write.json_tool,
        rules='\n</functions>\n\nTo call some, write:\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="name">\n'
        '<｜DSML｜parameter name="name" string="true|false">value</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>\nTexts are written as they are, with string true; all else is JSON, with string false.",
        call=write.dsml_call,
        calls=("<｜DSML｜function_calls>\n", "\n", "\n</｜DSML｜function_calls>"),
        result=around("<function_results>\n<result>", "</result>\n</function_results>"),
    ),
    "chatglm3": Form(
        family=families.GLM,
        about=f"{HEADER}[\n",
        tool=write.chatglm_tool,
        between=",\n",
        rules="\n]",
        call=lambda name, given, number: (
            f"{name}\n```python\n{python_text('tool_call', given) or dumped(given)}\n```"
        ),
        result=around("", ""),
    ),
    "glm": Form(
        family=families.GLM,
        about="# 可用工具\n\n",
        tool=write.glm_tool,
        between="\n\n",
        rules="\n\n在调用上述函数时，请使用 Json 格式表示调用的参数。",
        call=lambda name, given, number: f"{name}\n{dumped(given)}",
        result=around("", ""),
    ),
    "glm45": Form(
        family=families.HERMES,
        about=f"{_LISTED}<tools>\n",
        tool=write.typed_tool,
        rules="\n</tools>\n\nTo call one, answer:\n<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n"
        "</tool_call>",
        call=write.glm45_call,
        result=_IN_TAGS,
    ),
    "phi": Form(
        family=families.PHI,
        about="You are a helpful assistant with some tools.<|tool|>[",
        tool=write.json_tool,
        between=", ",
        rules="]<|/tool|>",
        call=as_json("", "arguments", ""),
        calls=("<|tool_call|>[", ", ", "]<|/tool_call|>"),
        result=around("<|tool_response|>", ""),
    ),
    "gemma": Form(
        family=families.PLAIN,
        about="You may call these functions:\n",
        tool=write.json_tool,
        rules=_PYTHONIC,
        call=write.python_call,
        calls=("[", ", ", "]"),
        result=_IN_TAGS,
        in_user=True,
    ),
    "gemma4": Form(
        family=families.GEMMA4,
        about="",
        tool=write.gemma_tool,
        between="",
        call=lambda name, given, number: (
            f"<|tool_call>call:{name}{write.gemma_value(given)}<tool_call|>"
        ),
        calls=("", "", ""),
        result=lambda name, number, text: (
            f"<|tool_response>response:{name}{write.gemma_value({'value': text})}<tool_response|>"
        ),
    ),
    "granite": Form(
        family=families.GRANITE,
        about="You may call these functions. To call some, write <|tool_call|> and a JSON list of them, each with a name and "
        "its arguments.\n[",
        tool=write.json_tool,
        between=",\n",
        rules="]",
        call=as_json("", "arguments", ""),
        calls=("<|tool_call|>[", ", ", "]"),
        result=lambda name, number, text: dumped({"name": name, "content": text}),
    ),
    "kimi": Form(
        family=families.KIMI,
        tools_turn="<|im_end|><|im_system|>tool_declare<|im_middle|>",
        about="[",
        tool=write.typed_tool,
        between=", ",
        rules="]",
        call=lambda name, given, number: (
            f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{dumped(given)}<|tool_call_end|>"
        ),
        calls=("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
        result=lambda name, number, text: (
            f"<|im_end|><|im_system|>tool<|im_middle|>## Return of functions.{name}:{number}\n{text}"
        ),
        user_turn="<|im_end|><|im_user|>user<|im_middle|>",
    ),
    "kimi3": Form(
        family=families.KIMI3,
        tools_turn=f'{_K3_END}<|open|>message role="system" type="tool-declare"<|sep|>',
        about="# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n[",
        tool=write.sorted_tool,
        between=",",
        rules="]\n```",
        call=write.kimi3_call,
        calls=("<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>"),
        result=lambda name, number, text: (
            f'{_K3_END}<|open|>message role="tool" tool="{write.escaped(name)}" index="{number}"<|sep|>{text}'
        ),
        user_turn=f'{_K3_END}<|open|>message role="user"<|sep|>',
        in_turn=True,
    ),
    "harmony": Form(
        family=families.HARMONY,
        about="# Tools\n\n## functions\n\nnamespace functions {\n\n",
        tool=write.typescript_tool,
        between="\n\n",
        rules="\n\n} // namespace functions\n\nCalls to these tools must go to the commentary channel: 'functions'.",
        call=lambda name, given, number: (
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumped(given)}<|call|>"
        ),
        calls=("", "<|start|>assistant", ""),
        result=lambda name, number, text: (
            f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{text}<|end|>"
        ),
    ),
}

#: A piece of a model's name, and its form; the first that is found counts.
_NAMED = (
    ("qwen3-coder", "qwen-coder"),
    ("qwen3.5", "qwen-coder"),
    ("hermes", "hermes"),
    ("deepseek-v3.2", "dsml"),
    ("deepseek-r1-distill", "plain"),
    ("deepseek", "deepseek"),
    ("qwen", "hermes"),
    ("qwq", "hermes"),
    ("smollm3", "hermes"),
    ("chatglm3", "chatglm3"),
    ("glm-4.", "glm45"),
    ("glm-4", "glm"),
    ("glm4", "glm"),
    ("kimi-k3", "kimi3"),
    ("kimi", "kimi"),
    ("gpt-oss", "harmony"),
    ("phi-4-mini", "phi"),
    ("gemma-4", "gemma4"),
    ("gemma4", "gemma4"),
    ("gemma", "gemma"),
    ("granite-4", "hermes"),
    ("granite4", "hermes"),
    ("granite", "granite"),
    ("llama-4", "llama4"),
    ("llama4", "llama4"),
    ("llama-3", "llama3"),
    ("llama3", "llama3"),
    ("mixtral", "mistral"),
    ("mistral", "mistral"),
    ("ministral", "mistral"),
)
#: What a template shows, and its form; the first that is found counts. What two families share is not here.
_SHOWN = (
    ("｜DSML｜", "dsml"),
    ("<｜User｜>", "deepseek"),
    ("<|im_middle|>", "kimi"),
    ("<|end_of_msg|>", "kimi3"),
    ("<|turn>", "gemma4"),
    ("<start_of_turn>", "gemma"),
    ("<|channel|>", "harmony"),
    ("<arg_key>", "glm45"),
    ("[gMASK]", "glm"),
    ("<parameter=", "qwen-coder"),
    ("<tool_call>", "hermes"),
    ("<|im_start|>", "hermes"),
    ("<|header_start|>", "llama4"),
    ("<|start_header_id|>", "llama3"),
    ("<|start_of_role|>", "granite"),
    ("<|tool|>", "phi"),
    ("[AVAILABLE_TOOLS]", "mistral"),
    ("[TOOL_CALLS]", "mistral"),
)
