"""
Command A and Command R7B, and Command R+ before them.

Sources: https://docs.cohere.com/docs/command-a-hf, https://huggingface.co/CohereForAI/c4ai-command-r-plus
"""

from unilect.families._family import CallStyle, Family, Marks, ToolFormat
from unilect.families._writing import Arguments, dumped


def _call(name: str, given: Arguments, number: int) -> str:
    return f'{{"tool_call_id": "{number}", "tool_name": {dumped(name)}, "parameters": {dumped(given)}}}'


COMMAND = Family(
    name="command",
    shown=("<|START_ACTION|>", "<|START_THINKING|>"),
    called=("command-a", "command-r7b"),
    thoughts=("<|START_THINKING|>", "<|END_THINKING|>"),
    calls=(Marks("<|START_ACTION|>", "<|END_ACTION|>"),),
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
    written=ToolFormat(
        rules='\n\nTo call some, write:\n<|START_ACTION|>[{"tool_call_id": "0", "tool_name": <name>, "parameters": <object>}]'
        "<|END_ACTION|>",
        call=_call,
        calls=("<|START_ACTION|>[", ", ", "]<|END_ACTION|>"),
        result=lambda name, number, text: (
            f'<|START_TOOL_RESULT|>[{{"tool_call_id": "{number}", "results": {dumped({"0": text})}}}]<|END_TOOL_RESULT|>'
        ),
    ),
    vllm=("cohere_command3", "cohere_command3"),
    sglang=("cohere_command4", "cohere_command4"),
)
_ACTION = "Action:\n```json\n"
COMMAND_R = Family(
    name="command-r",
    shown=("Action:\\n```json",),
    called=("command-r",),
    calls=(Marks(_ACTION, "```"),),
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
    force=CallStyle(f"{_ACTION}["),
    written=ToolFormat(
        rules=f'\n\nTo call some, write:\n{_ACTION}[{{"tool_name": <name>, "parameters": <object>}}]\n```',
        call=lambda name, given, number: (
            f'{{"tool_name": {dumped(name)}, "parameters": {dumped(given)}}}'
        ),
        calls=(f"{_ACTION}[", ", ", "]\n```"),
        result=lambda name, number, text: f"<results>\n{text}</results>",
    ),
)
