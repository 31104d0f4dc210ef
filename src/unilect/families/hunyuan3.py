"""
Hunyuan 3.

Source: https://github.com/ggml-org/llama.cpp/blob/master/models/templates/tencent-Hy3.jinja
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat

HUNYUAN3 = Family(
    name="hunyuan3",
    shown=("<tool_sep{}>", "<tool_sep:"),
    called=("hy3", "hunyuan-3"),
    thoughts=("<think:opensource>", "</think:opensource>"),
    thinks=("<tool_sep{}>",),
    calls=(Marks("<tool_calls:opensource>", "</tool_calls:opensource>"),),
    turn_ends=("<｜hy_eos:opensource｜>",),
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=write.wrap_tool,
        rules="\n</tools>\n\nTo call some, write:\n<tool_calls:opensource>\n<tool_call:opensource>name<tool_sep:opensource>\n"
        "<arg_key:opensource>key</arg_key:opensource>\n<arg_value:opensource>value</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        call=write.in_elements(
            "<tool_call:opensource>{name}<tool_sep:opensource>\n",
            "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>\n",
            "</tool_call:opensource>\n",
        ),
        calls=("<tool_calls:opensource>\n", "", "</tool_calls:opensource>"),
        result=write.around("<tool_response:opensource>\n", "\n</tool_response:opensource>"),
    ),
    vllm=("hy_v3", "hy_v3"),
)
