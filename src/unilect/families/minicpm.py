"""
MiniCPM 5.

Source: https://huggingface.co/openbmb/MiniCPM5-1B
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat
from unilect.families._writing import Arguments, bare


def _call(name: str, given: Arguments, number: int) -> str:
    inside = "".join(
        f'<param name="{key}"><![CDATA[{bare(value)}]]></param>' for key, value in given.items()
    )
    return f'<function name="{name}">{inside}</function>'


MINICPM = Family(
    name="minicpm",
    shown=('<function name="',),
    called=("minicpm5",),
    calls=(Marks("<function name=", "</function>", is_part=True),),
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=write.wrap_tool,
        rules='\n</tools>\n\nTo call one, answer:\n<function name="name"><param name="name">value</param></function>',
        call=_call,
        calls=("", "", ""),
        result=write.IN_TAGS,
    ),
    vllm=("minicpm5", ""),
    sglang=("minicpm5", ""),
)
