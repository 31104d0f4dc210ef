"""
DeepSeek.

Sources: https://huggingface.co/deepseek-ai/DeepSeek-V3.1, https://huggingface.co/deepseek-ai/DeepSeek-V3.2
"""

from unilect.core.requests import FunctionDefinition
from unilect.families._family import Family, Marks, ToolFormat
from unilect.families._writing import around, dumped, in_elements


def describe_tool(function: FunctionDefinition) -> str:
    """Write a function as DeepSeek reads it: a line for each thing that is said of it."""
    schema = dumped(function.parameters or {"type": "object", "properties": {}})
    return f"### {function.name}\nDescription: {function.description or ''}\n\nParameters: {schema}"


DSML = Family(
    name="dsml",
    shown=("｜DSML｜",),
    called=("deepseek-v3.2", "deepseek-v4"),
    calls=(
        Marks("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        Marks("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    ),
    marks=("｜DSML｜",),
    turn_ends=("<｜end▁of▁sentence｜>",),
    written=ToolFormat(
        about="## Tools\n\nYou may call these functions:\n<functions>\n",
        rules='\n</functions>\n\nTo call some, write:\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="name">\n'
        '<｜DSML｜parameter name="name" string="true|false">value</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>\nTexts are written as they are, with string true; all else is JSON, with string false.",
        call=in_elements(
            '<｜DSML｜invoke name="{name}">\n',
            '<｜DSML｜parameter name="{key}" string="{is_text}">{value}</｜DSML｜parameter>\n',
            "</｜DSML｜invoke>",
        ),
        calls=("<｜DSML｜function_calls>\n", "\n", "\n</｜DSML｜function_calls>"),
        result=around("<function_results>\n<result>", "</result>\n</function_results>"),
    ),
    vllm=("deepseek_v32", "deepseek_v3"),
    sglang=("deepseekv32", "deepseek-v3"),
)
DEEPSEEK = Family(
    name="deepseek",
    shown=("<｜tool▁calls▁begin｜>", "<｜User｜>"),
    called=("deepseek",),
    calls=(Marks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),),
    marks=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    turn_ends=("<｜end▁of▁sentence｜>",),
    written=ToolFormat(
        about="## Tools\nYou may call these functions:\n\n",
        tool=describe_tool,
        between="\n\n",
        rules="\n\nTo call some, write nothing but:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>"
        "arguments as JSON<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        call=lambda name, given, number: (
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumped(given)}<｜tool▁call▁end｜>"
        ),
        calls=("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
        result=around("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
    vllm=("deepseek_v31", "deepseek_r1"),
    sglang=("deepseekv31", "deepseek-r1"),
)
