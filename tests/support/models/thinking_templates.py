"""Chat templates whose models think, with what ends the thoughts."""

_TURNS = (
    "{%- for m in messages -%}[{{ m.role }}]{% if m.reasoning_content %}OPEN{{ m.reasoning_content }}CLOSE{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c | tojson }}</tool_call>{% endfor %}\n{% endfor -%}"
)
#: Thoughts are begun by the prompt, unless they are switched off, and left out of later prompts, as DeepSeek R1's are.
BEGUN = (
    "{%- for m in messages -%}[{{ m.role }}] {{ m.content or '' }}\n{% endfor -%}"
    "{%- if add_generation_prompt -%}[assistant] <think>\n"
    "{%- if enable_thinking is defined and enable_thinking is false -%}</think>\n\n{%- endif -%}{%- endif -%}"
)
#: The same with a place for tools.
BEGUN_WITH_TOOLS = (
    "{%- if tools -%}<tool_call>{{ tools | tojson }}</tool_call>{%- endif -%}" + BEGUN
)
#: Thoughts are begun with words, and end with a mark that no other model has, as Apriel's.
WORDS = (
    _TURNS.replace("OPEN", "\n").replace("CLOSE", "\n[BEGIN FINAL RESPONSE]\n")
    + "{%- if add_generation_prompt -%}[assistant]\nHere are my reasoning steps:\n{% endif -%}"
)
#: The model begins them itself, as Qwen 3.
OWN = (
    _TURNS.replace("OPEN", "\n<think>\n").replace("CLOSE", "\n</think>\n\n")
    + "{%- if add_generation_prompt -%}[assistant]{% endif -%}"
)
#: The answer is marked, as gpt-oss'.
FRAMED = (
    "{%- for m in messages -%}[{{ m.role }}]{% if m.role == 'assistant' %}<|channel|>final<|message|>{% endif %}"
    "{{ m.content or '' }}\n{% endfor -%}{%- if add_generation_prompt -%}[assistant]{% endif -%}"
)
#: One that nobody thinks in.
PLAIN = "{%- for m in messages -%}[{{ m.role }}] {{ m.content or '' }}\n{% endfor -%}{%- if add_generation_prompt -%}[assistant] {% endif -%}"
