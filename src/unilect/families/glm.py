"""
GLM 4 and later; ChatGLM3 stands in `chatglm`.

Sources: https://huggingface.co/zai-org/GLM-4-9B-0414, https://huggingface.co/zai-org/GLM-4.5
"""

from unilect.core.requests import FunctionDefinition
from unilect.families import _writing as write
from unilect.families._family import Family, ToolFormat
from unilect.families.hermes import CALLS, FORCE

_ENDS = ("<|user|>", "<|observation|>", "<|endoftext|>")


def glm_tool(function: FunctionDefinition) -> str:
    """Write a function as GLM 4 reads it: JSON below its name."""
    return f"## {function.name}\n\n{write.indent_tool(function)}"


GLM45 = Family(
    name="glm45",
    shown=("<arg_key>",),
    called=("glm-4.", "glm-5"),
    calls=CALLS,
    turn_ends=_ENDS,
    force=FORCE,
    written=ToolFormat(
        about=f"{write.LISTED}<tools>\n",
        tool=write.wrap_tool,
        rules="\n</tools>\n\nTo call one, answer:\n<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n"
        "</tool_call>",
        call=write.in_elements(
            "<tool_call>{name}\n",
            "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
            "</tool_call>",
        ),
        result=write.IN_TAGS,
    ),
    vllm=("glm45", "glm45"),
    sglang=("glm45", "glm45"),
)
GLM = Family(
    name="glm",
    shown=("<|observation|>", "[gMASK]"),
    called=("glm-4", "glm4"),
    is_bare=True,
    turn_ends=_ENDS,
    written=ToolFormat(
        about="# 可用工具\n\n",
        tool=glm_tool,
        between="\n\n",
        rules="\n\n在调用上述函数时，请使用 Json 格式表示调用的参数。",
        call=lambda name, given, number: f"{name}\n{write.dumped(given)}",
    ),
)
