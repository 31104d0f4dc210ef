"""
Solar Open.

Source: https://huggingface.co/upstage/Solar-Open-100B
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat

SOLAR = Family(
    name="solar",
    shown=("<|tool_call:begin|>",),
    called=("solar-open",),
    thoughts=("<|think|>", "<|end|>"),
    calls=(Marks("<|tool_calls|>", "<|calls|>"),),
    marks=("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
    dropped=("<|begin|>assistant", "<|content|>", "<|end|>"),
    turn_ends=("<|calls|>",),
    written=ToolFormat(
        about=f"{write.LISTED}<|tools:begin|>",
        tool=lambda function: f"<|tool:begin|>{write.json_tool(function)}<|tool:end|>",
        between="",
        rules="<|tools:end|>\n\nTo call one, write:\n<|tool_call:begin|>id<|tool_call:name|>name<|tool_call:args|>arguments as JSON"
        "<|tool_call:end|>",
        call=lambda name, given, number: (
            f"<|tool_call:begin|>call{number}<|tool_call:name|>{name}<|tool_call:args|>{write.dumped(given)}<|tool_call:end|>"
        ),
        calls=("<|tool_calls|>", "", "<|calls|>"),
        result=lambda name, number, text: (
            f"<|tool_response:begin|>call{number}<|tool_response:name|>{name}<|tool_response:result|>{text}<|tool_response:end|>"
        ),
    ),
)
