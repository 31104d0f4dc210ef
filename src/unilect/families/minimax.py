"""
MiniMax M2 and M3; M1 writes as Jamba does.

Sources: https://huggingface.co/MiniMaxAI/MiniMax-M2, https://huggingface.co/MiniMaxAI/MiniMax-M3
"""

from collections.abc import Mapping
from typing import Any

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat
from unilect.families._tagged import SIGN

_ENDS = ("[e~[",)

MINIMAX = Family(
    name="minimax",
    shown=("<minimax:tool_call>",),
    called=("minimax-m2",),
    calls=(Marks("<minimax:tool_call>", "</minimax:tool_call>"),),
    turn_ends=_ENDS,
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=lambda function: f"<tool>{write.json_tool(function)}</tool>",
        rules='\n</tools>\n\nTo call some, write:\n<minimax:tool_call>\n<invoke name="name">\n<parameter name="name">value</parameter>\n'
        "</invoke>\n</minimax:tool_call>",
        call=write.in_elements(
            '<invoke name="{name}">\n',
            '<parameter name="{key}">{value}</parameter>\n',
            "</invoke>",
        ),
        calls=("<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"),
        result=write.around("<response>", "</response>"),
    ),
    vllm=("minimax_m2", "minimax_m2"),
    sglang=("minimax-m2", "minimax"),
)


def _element(key: str, value: Any) -> str:
    """Write a value as MiniMax M3 writes it: an element, and one for each value within."""
    match value:
        case Mapping():
            inside = "".join(_element(*one) for one in value.items())
        case list():
            inside = "".join(_element("item", one) for one in value)
        case _:
            inside = write.bare(value)
    return f"{SIGN}<{key}>{inside}{SIGN}</{key}>"


def _call(name: str, given: write.Arguments, number: int) -> str:
    inside = "".join(_element(*one) for one in given.items())
    return f'{SIGN}<invoke name="{name}">{inside}{SIGN}</invoke>\n'


MINIMAX3 = Family(
    name="minimax3",
    shown=(SIGN,),
    called=("minimax-m3",),
    thoughts=("<mm:think>", "</mm:think>"),
    calls=(Marks(f"{SIGN}<tool_call>", f"{SIGN}</tool_call>"),),
    marks=(SIGN,),
    turn_ends=_ENDS,
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=lambda function: f"<tool>{write.json_tool(function)}</tool>",
        rules=f'\n</tools>\n\nTo call some, write:\n{SIGN}<tool_call>\n{SIGN}<invoke name="name">{SIGN}<key>value{SIGN}</key>{SIGN}</invoke>\n'
        f"{SIGN}</tool_call>",
        call=_call,
        calls=(f"{SIGN}<tool_call>\n", "", f"{SIGN}</tool_call>"),
        result=write.around("<response>", "</response>"),
    ),
    vllm=("minimax_m3", "minimax_m3"),
    sglang=("minimax-m3", "minimax-m3"),
)
