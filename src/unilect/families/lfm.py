"""
LFM2.

Source: https://huggingface.co/LiquidAI/LFM2-8B-A1B
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat

LFM2 = Family(
    name="lfm2",
    shown=("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
    called=("lfm2",),
    calls=(Marks("<|tool_call_start|>", "<|tool_call_end|>"),),
    written=ToolFormat(
        about="List of tools: <|tool_list_start|>[",
        between=", ",
        rules="]<|tool_list_end|>",
        call=write.python_call,
        calls=("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        result=write.around("<|tool_response_start|>", "<|tool_response_end|>"),
    ),
    vllm=("lfm2", ""),
    sglang=("lfm2", ""),
)
