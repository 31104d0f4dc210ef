"""
OLMo 3.

Source: https://huggingface.co/allenai/Olmo-3-7B-Instruct
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat

OLMO3 = Family(
    name="olmo3",
    shown=("<function_calls>",),
    called=("olmo-3", "olmo3"),
    calls=(Marks("<function_calls>", "</function_calls>"),),
    written=ToolFormat(
        about=f"{write.LISTED}<functions>[",
        between=", ",
        rules="]</functions>\n\nTo call some, write a line for each:\n<function_calls>\nname(argument=value)\n</function_calls>",
        call=write.python_call,
        calls=("<function_calls>\n", "\n", "\n</function_calls>"),
    ),
    vllm=("olmo3", "olmo3"),
)
