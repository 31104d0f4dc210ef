"""
MiniCPM 5.

Source: https://huggingface.co/openbmb/MiniCPM5-1B
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat

MINICPM = Family(
    name="minicpm",
    shown=('<function name="',),
    called=("minicpm5",),
    calls=(Marks("<function name=", "</function>", is_part=True),),
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=write.wrap_tool,
        rules='\n</tools>\n\nTo call one, answer:\n<function name="name"><param name="name">value</param></function>',
        call=write.in_elements(
            '<function name="{name}">',
            '<param name="{key}"><![CDATA[{value}]]></param>',
            "</function>",
        ),
        calls=("", "", ""),
        result=write.IN_TAGS,
    ),
    vllm=("minicpm5", ""),
    sglang=("minicpm5", ""),
)
