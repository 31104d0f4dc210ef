"""
Hermes and Qwen, and the many families that write calls as Hermes does: Granite 4, SmolLM3, EXAONE 4, ERNIE 4.5.

Sources: https://github.com/NousResearch/Hermes-Function-Calling, https://huggingface.co/Qwen/Qwen3-8B,
https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct
"""

from unilect.core.requests import FunctionDefinition
from unilect.families import _writing as write
from unilect.families._family import CallStyle, Family, Marks, ToolFormat

#: Some models leave out the mark around a call.
CALLS = (
    Marks("<tool_call>", "</tool_call>"),
    Marks("<function=", "</function>", behind="</tool_call>", is_part=True),
)
FORCE = CallStyle("<tool_call>\n")


def coder_tool(function: FunctionDefinition) -> str:
    """Write a function as Qwen Coder reads it: elements for its name, what it does and its arguments."""
    lines = ["<function>", f"<name>{function.name}</name>"]
    if function.description:
        lines.append(f"<description>{function.description}</description>")
    lines.append("<parameters>")
    properties = (function.parameters or {}).get("properties")
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        lines += ["<parameter>", f"<name>{name}</name>", write.dumped(schema), "</parameter>"]
    return "\n".join([*lines, "</parameters>", "</function>"])


QWEN_CODER = Family(
    name="qwen-coder",
    shown=("<parameter=",),
    called=("qwen3-coder", "qwen3.5", "qwen3.6", "nemotron-3", "step-3.5"),
    calls=CALLS,
    force=FORCE,
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=coder_tool,
        rules="\n</tools>\n\nTo call one, answer:\n<tool_call>\n<function=name>\n<parameter=name>\nvalue\n</parameter>\n"
        "</function>\n</tool_call>",
        call=write.in_elements(
            "<tool_call>\n<function={name}>\n",
            "<parameter={key}>\n{value}\n</parameter>\n",
            "</function>\n</tool_call>",
        ),
        result=write.IN_TAGS,
    ),
    vllm=("qwen3_coder", "qwen3"),
    sglang=("qwen3_coder", "qwen3"),
)
HERMES = Family(
    name="hermes",
    shown=("<tool_call>", "<|im_start|>"),
    called=("hermes", "qwen", "qwq", "smollm3", "granite-4", "granite4"),
    calls=CALLS,
    force=FORCE,
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=write.wrap_tool,
        rules='\n</tools>\n\nTo call one, answer:\n<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>',
        call=write.as_json("<tool_call>\n", "arguments", "\n</tool_call>"),
        result=write.IN_TAGS,
    ),
    vllm=("hermes", "qwen3"),
    sglang=("qwen25", "qwen3"),
)
