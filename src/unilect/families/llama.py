"""
Llama 3 and 4.

Source: https://www.llama.com/docs/model-cards-and-prompt-formats/
"""

from unilect.families import _writing as write
from unilect.families._family import CallStyle, Family, Marks, ToolFormat

LLAMA3 = Family(
    name="llama3",
    shown=("<|python_tag|>", "Environment: ipython", "<|start_header_id|>"),
    called=("llama-3", "llama3"),
    calls=(Marks("<|python_tag|>"), Marks("<function=", "</function>", is_part=True)),
    is_bare=True,
    turn_ends=("<|eot_id|>", "<|eom_id|>", "<|im_end|>"),
    force=CallStyle("", "parameters"),
    written=ToolFormat(
        about="You may call these functions:\n\n",
        tool=write.indent_tool,
        between="\n\n",
        rules='\n\nTo call one, answer with JSON and with nothing else: {"name": function name, "parameters": dictionary of '
        "argument name and its value}. Do not use variables.",
        call=write.as_json("", "parameters", ""),
        calls=("", "; ", ""),
        result=lambda name, number, text: write.dumped({"output": text}),
    ),
    vllm=("llama3_json", ""),
    sglang=("llama3", ""),
)
LLAMA4 = Family(
    name="llama4",
    shown=("<|python_start|>", "<|header_start|>"),
    called=("llama-4", "llama4"),
    calls=(Marks("<|python_start|>", "<|python_end|>"),),
    is_bare=True,
    turn_ends=("<|eot|>", "<|eom|>"),
    written=ToolFormat(
        about="You may call these functions:\n",
        tool=write.indent_tool,
        rules=write.PYTHONIC,
        call=write.python_call,
        calls=("[", ", ", "]"),
        result=lambda name, number, text: write.dumped(text),
    ),
    vllm=("llama4_pythonic", ""),
    sglang=("pythonic", ""),
)
