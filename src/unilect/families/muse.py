"""
Muse Glimmer: messages for the user, for tools and for the model itself, with calls in elements.

Source: https://github.com/ggml-org/llama.cpp/blob/master/models/templates/muse-glimmer.jinja
"""

from unilect.families._family import Family, ToolFormat
from unilect.families._writing import in_elements
from unilect.families.gpt_oss import ChannelScanner


class MessageScanner(ChannelScanner):
    """Reads messages, of which each is for the user, for the model itself or for a tool; see `Scanner`."""

    others = frozenset({"user", "self"})


MUSE = Family(
    name="muse",
    shown=("<atem:function_calls>",),
    called=("muse-glimmer",),
    thoughts=(" to=self<|message|>", "<|eom|>"),
    thinks=("<atem:function_calls>",),
    marks=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    turn_ends=("<|eot|>",),
    scanner=MessageScanner,
    written=ToolFormat(
        rules='\n\nTo call one, write:\n<atem:function_calls>\n<atem:invoke name="name">\n'
        '<atem:parameter name="name">value</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        call=in_elements(
            ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n',
            '<atem:parameter name="{key}">{value}</atem:parameter>\n',
            "</atem:invoke>\n</atem:function_calls>",
        ),
        calls=("", "<|eom|><|start|>assistant", ""),
        result=lambda name, number, text: f'<tool_output name="{name}">\n{text}\n</tool_output>',
    ),
    vllm=("muse_glimmer", "muse_glimmer"),
    sglang=("muse", "muse"),
)
