"""
Step-3; Step-3.5 writes as Qwen Coder does.

Source: https://huggingface.co/stepfun-ai/step3
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat

STEP3 = Family(
    name="step3",
    shown=("<｜tool_calls_begin｜>",),
    called=("step3", "step-3"),
    calls=(Marks("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),),
    marks=("<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
    written=ToolFormat(
        tool=write.wrap_tool,
        rules='\n\nTo call some, write:\n<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="name">'
        '<steptml:parameter name="name">value</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
        call=write.in_elements(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
            '<steptml:parameter name="{key}">{value}</steptml:parameter>',
            "</steptml:invoke><｜tool_call_end｜>",
        ),
        calls=("<｜tool_calls_begin｜>", "", "<｜tool_calls_end｜>"),
    ),
    vllm=("step3", "step3"),
    sglang=("step3", "step3"),
)
