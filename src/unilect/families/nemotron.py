"""
Nemotron Nano 2; Nemotron 3 writes as Qwen Coder does.

Source: https://huggingface.co/nvidia/NVIDIA-Nemotron-Nano-9B-v2
"""

from unilect.families import _writing as write
from unilect.families._family import CallStyle, Family, Marks, ToolFormat

NEMOTRON = Family(
    name="nemotron",
    shown=("<TOOLCALL>",),
    called=("nemotron",),
    calls=(Marks("<TOOLCALL>", "</TOOLCALL>"),),
    turn_ends=("<SPECIAL_12>",),
    force=CallStyle("<TOOLCALL>["),
    written=ToolFormat(
        about=f"{write.LISTED}<AVAILABLE_TOOLS>[",
        between=", ",
        rules=']</AVAILABLE_TOOLS>\n\nTo call some, write:\n<TOOLCALL>[{"name": <name>, "arguments": <object>}]</TOOLCALL>',
        calls=("<TOOLCALL>[", ", ", "]</TOOLCALL>"),
        result=write.around("<TOOL_RESPONSE>[", "]</TOOL_RESPONSE>"),
    ),
)
