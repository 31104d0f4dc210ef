"""
Granite 3; Granite 4 writes as Hermes does.

Source: https://huggingface.co/ibm-granite/granite-3.3-8b-instruct
"""

from unilect.families._family import CallStyle, Family, Marks, ToolFormat
from unilect.families._writing import dumped

GRANITE = Family(
    name="granite",
    shown=("<|start_of_role|>",),
    called=("granite",),
    calls=(Marks("<|tool_call|>"),),
    wraps=(("<response>", "</response>"),),
    turn_ends=("<|end_of_text|>",),
    force=CallStyle("<|tool_call|>["),
    written=ToolFormat(
        about="You may call these functions. To call some, write <|tool_call|> and a JSON list of them, each with a name and "
        "its arguments.\n[",
        between=",\n",
        rules="]",
        calls=("<|tool_call|>[", ", ", "]"),
        result=lambda name, number, text: dumped({"name": name, "content": text}),
    ),
    vllm=("granite", "granite"),
)
