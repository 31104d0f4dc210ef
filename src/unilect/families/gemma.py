"""
Gemma 2 and 3, which were trained with no form of calls: what they write may have any.

Source: https://ai.google.dev/gemma/docs/capabilities/function-calling
"""

from unilect.families import _writing as write
from unilect.families._family import Family, ToolFormat
from unilect.families.plain import PLAIN

GEMMA = Family(
    name="gemma",
    shown=("<start_of_turn>",),
    called=("gemma",),
    calls=PLAIN.calls,
    is_bare=True,
    turn_ends=("<end_of_turn>",),
    written=ToolFormat(
        about="You may call these functions:\n",
        rules=write.PYTHONIC,
        call=write.python_call,
        calls=("[", ", ", "]"),
        result=write.IN_TAGS,
        in_user=True,
    ),
    vllm=("pythonic", ""),
    sglang=("pythonic", ""),
)
