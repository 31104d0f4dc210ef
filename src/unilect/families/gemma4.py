"""
Gemma 4.

Source: https://huggingface.co/google/gemma-4-31B-it
"""

from collections.abc import Mapping
from typing import Any

from unilect.core.requests import FunctionDefinition
from unilect.families._family import Family, Marks, ToolFormat
from unilect.families._writing import dumped


def gemma_value(value: Any) -> str:
    """Write a value as Gemma 4 writes it: JSON with marks of its own around texts, and bare keys."""
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case Mapping():
            inside = (f"{key}:{gemma_value(one)}" for key, one in value.items())
            return "{" + ",".join(inside) + "}"
        case list():
            return "[" + ",".join(map(gemma_value, value)) + "]"
    return dumped(value)


def gemma_tool(function: FunctionDefinition) -> str:
    """Write a function as Gemma 4 declares it."""
    told = {"description": function.description or "", "parameters": function.parameters or {}}
    return f"<|tool>declaration:{function.name}{gemma_value(told)}<tool|>"


GEMMA4 = Family(
    name="gemma4",
    shown=("<|tool_call>", "<|turn>"),
    called=("gemma-4", "gemma4"),
    thoughts=("<|channel>thought\n", "<channel|>"),
    calls=(Marks("<|tool_call>", "<tool_call|>"),),
    marks=('<|"|>', "<|channel>"),
    turn_ends=("<turn|>", "<|tool_response>"),
    written=ToolFormat(
        about="",
        tool=gemma_tool,
        between="",
        call=lambda name, given, number: f"<|tool_call>call:{name}{gemma_value(given)}<tool_call|>",
        calls=("", "", ""),
        result=lambda name, number, text: (
            f"<|tool_response>response:{name}{gemma_value({'value': text})}<tool_response|>"
        ),
    ),
    vllm=("gemma4", "gemma4"),
    sglang=("gemma4", "gemma4"),
)
