"""
Seed-OSS.

Source: https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct
"""

from unilect.families import _writing as write
from unilect.families._family import Family, Marks, ToolFormat

SEED = Family(
    name="seed",
    shown=("<seed:tool_call>", "<seed:bos>"),
    called=("seed-oss",),
    thoughts=("<seed:think>", "</seed:think>"),
    calls=(Marks("<seed:tool_call>", "</seed:tool_call>"),),
    turn_ends=("<seed:eos>",),
    written=ToolFormat(
        tool=write.wrap_tool,
        rules="\n\nTo call one, answer:\n<seed:tool_call>\n<function=name>\n<parameter=name>value</parameter>\n</function>\n"
        "</seed:tool_call>",
        call=write.in_elements(
            "<seed:tool_call>\n<function={name}>\n",
            "<parameter={key}>{value}</parameter>\n",
            "</function>\n</seed:tool_call>",
        ),
    ),
    vllm=("seed_oss", "seed_oss"),
)
