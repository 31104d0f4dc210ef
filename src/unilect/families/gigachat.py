"""
GigaChat 3.1.

Source: https://huggingface.co/ai-sage/GigaChat3.1-10B-A1.8B
"""

from unilect.families._family import CallStyle, Family, Marks, ToolFormat
from unilect.families._writing import as_json

GIGACHAT = Family(
    name="gigachat",
    shown=("<|function_call|>",),
    called=("gigachat3",),
    calls=(Marks("<|function_call|>"),),
    turn_ends=("<|message_sep|>",),
    force=CallStyle("<|function_call|>"),
    written=ToolFormat(
        rules='\n\nTo call one, answer:\n<|function_call|>{"name": <name>, "arguments": <object>}',
        call=as_json("<|function_call|>", "arguments", ""),
    ),
)
