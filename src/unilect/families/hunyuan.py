"""
Hunyuan.

Source: https://huggingface.co/tencent/Hunyuan-A13B-Instruct
"""

from unilect.families import _writing as write
from unilect.families._family import Family, ToolFormat
from unilect.families.jamba import CALLS

HUNYUAN = Family(
    name="hunyuan",
    shown=("<｜hy_User｜>", "<|extra_0|>"),
    called=("hunyuan",),
    calls=CALLS,
    wraps=(("<answer>", "</answer>"),),
    turn_ends=("<|eos|>", "<｜hy_place▁holder▁no▁2｜>"),
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=write.wrap_tool,
        rules="\n</tools>\n\nTo call some, write:\n<tool_calls>\n<tool_call>name\n```json\narguments\n```</tool_call>\n</tool_calls>",
        call=lambda name, given, number: (
            f"<tool_call>{name}\n```json\n{write.dumped(given)}\n```</tool_call>"
        ),
        calls=("<tool_calls>\n", "\n", "\n</tool_calls>"),
        result=write.around("<tool_response>", "</tool_response>"),
    ),
    vllm=("hunyuan_a13b", "hunyuan_a13b"),
)
