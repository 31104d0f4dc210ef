"""
Families that write a JSON list of calls between tags: Jamba and xLAM, MiniMax M1, and Apriel.

Sources: https://huggingface.co/ai21labs/AI21-Jamba-Mini-1.6, https://huggingface.co/Salesforce/xLAM-7b-fc-r,
https://huggingface.co/ServiceNow-AI/Apriel-1.6-15b-Thinker
"""

from unilect.families import _writing as write
from unilect.families._family import CallStyle, Family, Marks, ToolFormat

CALLS = (Marks("<tool_calls>", "</tool_calls>"),)
_FORCE = CallStyle("<tool_calls>[")
_WRITTEN = ToolFormat(
    about=f"{write.LISTED}<tools>\n",
    rules='\n</tools>\n\nTo call some, write:\n<tool_calls>[{"name": <name>, "arguments": <object>}]</tool_calls>',
    calls=("<tool_calls>[", ", ", "]</tool_calls>"),
)

APRIEL = Family(
    name="apriel",
    shown=("[BEGIN FINAL RESPONSE]",),
    called=("apriel",),
    thoughts=("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    calls=CALLS,
    turn_ends=("<|end|>",),
    force=_FORCE,
    written=_WRITTEN,
)
#: xLAM writes the list alone, too.
JAMBA = Family(
    name="jamba",
    shown=("<tool_calls>",),
    called=("jamba", "xlam", "minimax-m1"),
    calls=CALLS,
    is_bare=True,
    force=_FORCE,
    written=_WRITTEN,
    vllm=("jamba", ""),
)
