"""
GigaChat 3 and 3.1.

Sources: https://huggingface.co/ai-sage/GigaChat3-10B-A1.8B, https://huggingface.co/ai-sage/GigaChat3.1-10B-A1.8B
"""

from unilect.families._family import CallStyle, Family, Marks, ToolFormat
from unilect.families._writing import as_json

_CALL = "<|message_sep|>\n\nfunction call<|role_sep|>\n"

GIGACHAT3 = Family(
    name="gigachat3",
    shown=("'role': 'function call'",),
    calls=(Marks("function call<|role_sep|>\n", "<|message_sep|>"),),
    dropped=("<|message_sep|>",),
    turn_ends=(),
    force=CallStyle(_CALL),
    written=ToolFormat(
        rules=f'\n\nTo call one, answer:\n{_CALL}{{"name": <name>, "arguments": <object>}}',
        call=as_json(_CALL, "arguments", ""),
    ),
    vllm=("gigachat3", ""),
    sglang=("gigachat3", ""),
)
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
    vllm=("gigachat3", ""),
    sglang=("gigachat3", ""),
)
