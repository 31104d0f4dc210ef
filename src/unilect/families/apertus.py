"""
Apertus.

Source: https://huggingface.co/swiss-ai/Apertus-8B-Instruct-2509
"""

from unilect.families._family import Family, Marks, ToolFormat
from unilect.families._writing import dumped

APERTUS = Family(
    name="apertus",
    shown=("<|tools_prefix|>", "<|inner_prefix|>"),
    called=("apertus",),
    thoughts=("<|inner_prefix|>", "<|inner_suffix|>"),
    calls=(Marks("<|tools_prefix|>", "<|tools_suffix|>"),),
    turn_ends=("<|assistant_end|>",),
    written=ToolFormat(
        rules='\n\nTo call some, write:\n<|tools_prefix|>[{"<name>": <object>}]<|tools_suffix|>',
        call=lambda name, given, number: dumped({name: given}),
        calls=("<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),
    ),
    vllm=("apertus", ""),
    sglang=("apertus2509", "apertus2509"),
)
