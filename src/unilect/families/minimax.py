"""
MiniMax M2; M1 writes as Jamba does.

Sources: https://huggingface.co/MiniMaxAI/MiniMax-M2, https://huggingface.co/MiniMaxAI/MiniMax-M3
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat
from unilect.families._writing import around, invoke_call

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
        call=invoke_call,
        calls=("<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"),
        result=around("<response>", "</response>"),
    ),
    vllm=("minimax_m2", "minimax_m2"),
    sglang=("minimax-m2", "minimax"),
)
