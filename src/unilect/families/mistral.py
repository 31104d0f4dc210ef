"""
Mistral, Magistral, Devstral and Ministral.

Sources: https://docs.mistral.ai/capabilities/function_calling/, https://github.com/mistralai/mistral-common
"""

from unilect.families import _writing as write
from unilect.families._family import CallStyle, Family, Marks, ToolFormat

MISTRAL = Family(
    name="mistral",
    shown=("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
    called=("mixtral", "mistral", "ministral", "magistral", "devstral"),
    thoughts=("[THINK]", "[/THINK]"),
    calls=(Marks("[TOOL_CALLS]"),),
    marks=("[ARGS]", "[CALL_ID]"),
    turn_ends=("</s>",),
    force=CallStyle("[TOOL_CALLS]["),
    written=ToolFormat(
        about="[AVAILABLE_TOOLS][",
        tool=write.wrap_tool,
        between=", ",
        rules="][/AVAILABLE_TOOLS]",
        calls=("[TOOL_CALLS][", ", ", "]"),
        result=lambda name, number, text: (
            f"[TOOL_RESULTS]{write.dumped({'content': text})}[/TOOL_RESULTS]"
        ),
        in_user=True,
    ),
    vllm=("mistral", "mistral"),
    sglang=("mistral", "mistral"),
)
