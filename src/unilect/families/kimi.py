"""
Kimi.

Sources: https://huggingface.co/moonshotai/Kimi-K2-Instruct,
https://github.com/MoonshotAI/Kimi-K2/blob/main/docs/tool_call_guidance.md,
https://github.com/ggml-org/llama.cpp/blob/master/models/templates/Kimi-K3.jinja
"""

import json
from collections.abc import Mapping
from typing import Any

from unilect.core.requests import FunctionDefinition
from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat

_K3_END = "<|close|>message<|sep|><|end_of_msg|>"


def sort_tool(function: FunctionDefinition) -> str:
    """Write a function as Kimi K3 reads it: names in their order, and no blanks between."""
    told = {"type": "function", "function": write.describe(function)}
    return json.dumps(told, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def kimi3_call(name: str, given: write.Arguments, number: int) -> str:
    """Write a call as Kimi K3 writes it: a tag with its type for each argument, texts as they are."""
    inside = "".join(
        f'<|open|>argument key="{escape(key)}" type="{_kind(value)}"<|sep|>{write.bare(value)}<|close|>argument<|sep|>'
        for key, value in given.items()
    )
    head = f'<|open|>call tool="{escape(name)}" index="{number}"<|sep|>'
    return f"{head}{inside}<|close|>call<|sep|>"


def _kind(value: Any) -> str:
    """Return Kimi K3's name for the type of a JSON value."""
    match value:
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case Mapping():
            return "object"
    return "null" if value is None else "array"


def escape(text: str) -> str:
    """Return a text within the quotes of one of Kimi K3's tags."""
    return text.replace("&", "&amp;").replace('"', "&quot;")


KIMI = Family(
    name="kimi",
    shown=("<|tool_calls_section_begin|>", "<|im_middle|>"),
    called=("kimi",),
    calls=(Marks("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),),
    marks=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    written=ToolFormat(
        tools_turn="<|im_end|><|im_system|>tool_declare<|im_middle|>",
        about="[",
        tool=write.wrap_tool,
        between=", ",
        rules="]",
        call=lambda name, given, number: (
            f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{write.dumped(given)}<|tool_call_end|>"
        ),
        calls=("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
        result=lambda name, number, text: (
            f"<|im_end|><|im_system|>tool<|im_middle|>## Return of functions.{name}:{number}\n{text}"
        ),
        user_turn="<|im_end|><|im_user|>user<|im_middle|>",
    ),
    vllm=("kimi_k2", "kimi_k2"),
    sglang=("kimi_k2", "kimi_k2"),
)
KIMI3 = Family(
    name="kimi3",
    shown=("<|end_of_msg|>",),
    called=("kimi-k3",),
    thoughts=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    thinks=("<|end_of_msg|>",),
    calls=(Marks("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),),
    marks=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    dropped=(
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
    turn_ends=("<|end_of_msg|>",),
    written=ToolFormat(
        tools_turn=f'{_K3_END}<|open|>message role="system" type="tool-declare"<|sep|>',
        about="# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n[",
        tool=sort_tool,
        between=",",
        rules="]\n```",
        call=kimi3_call,
        calls=("<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>"),
        result=lambda name, number, text: (
            f'{_K3_END}<|open|>message role="tool" tool="{escape(name)}" index="{number}"<|sep|>{text}'
        ),
        user_turn=f'{_K3_END}<|open|>message role="user"<|sep|>',
        in_turn=True,
    ),
    vllm=("kimi_k3", "kimi_k3"),
    sglang=("kimi_k3", "kimi_k3"),
)
