"""
Phi 4 mini, and models that begin their calls with `functools`, as Phi's examples do, too.

Source: https://huggingface.co/microsoft/Phi-4-mini-instruct
"""

from unilect.families._family import CallStyle, Family, Marks, ToolFormat
from unilect.families._writing import around

_FUNCTOOLS = Marks("functools[")

PHI = Family(
    name="phi",
    shown=("<|tool_call|>", "<|tool|>"),
    called=("phi-4-mini",),
    calls=(Marks("<|tool_call|>", "<|/tool_call|>"), _FUNCTOOLS),
    turn_ends=("<|end|>",),
    force=CallStyle("<|tool_call|>["),
    written=ToolFormat(
        about="You are a helpful assistant with some tools.<|tool|>[",
        between=", ",
        rules="]<|/tool|>",
        calls=("<|tool_call|>[", ", ", "]<|/tool_call|>"),
        result=around("<|tool_response|>", ""),
    ),
    vllm=("phi4_mini_json", ""),
)
FUNCTOOLS = Family(
    name="functools",
    shown=("functools",),
    called=("firefunction",),
    calls=(_FUNCTOOLS,),
    force=CallStyle("functools["),
    written=ToolFormat(
        rules='\n\nTo call some, answer: functools[{"name": <name>, "arguments": <object>}, ...]',
        calls=("functools[", ", ", "]"),
    ),
)
