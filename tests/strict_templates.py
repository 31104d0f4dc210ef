"""
Chat templates with the rules of models' own, in short: what each takes of a conversation, and the words with which it refuses.

Sources: the `chat_template` of Mistral-7B-Instruct-v0.3, gemma-2-9b-it, gemma-3-4b-it, Llama-2-7b-chat, Qwen3.5 and gpt-oss-20b
"""

from collections.abc import Sequence
from typing import Any

from unilect.tools.turns import ALL, Takes

#: The first message is the system's, or none is; roles take turns, calls and results aside; a result is followed by the assistant.
MISTRAL = """
{%- if messages[0].role == "system" -%}
{%- set head = messages[0].content ~ "\\n\\n" -%}{%- set talk = messages[1:] -%}
{%- else -%}{%- set head = "" -%}{%- set talk = messages -%}{%- endif -%}
{%- set seen = namespace(turns=0) -%}
{%- for m in talk -%}
{%- if m.role == "user" or (m.role == "assistant" and not m.tool_calls) -%}
{%- if (m.role == "user") != (seen.turns % 2 == 0) -%}
{{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") -}}
{%- endif -%}
{%- set seen.turns = seen.turns + 1 -%}
{%- endif -%}
{%- endfor -%}
{%- if tools -%}{{- "[AVAILABLE_TOOLS]" ~ (tools | tojson) ~ "[/AVAILABLE_TOOLS]" -}}{%- endif -%}
{%- for m in talk -%}
{%- if m.role == "user" -%}{{- "[INST] " ~ (head if loop.last else "") ~ m.content ~ "[/INST]" -}}
{%- elif m.role == "tool" -%}{{- "[TOOL_RESULTS]" ~ m.content ~ "[/TOOL_RESULTS]" -}}
{%- elif m.tool_calls -%}{{- "[TOOL_CALLS]" ~ m.tool_calls[0].function.name -}}
{%- elif m.role == "assistant" -%}{{- " " ~ m.content ~ "</s>" -}}
{%- else -%}{{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") -}}
{%- endif -%}
{%- endfor -%}
"""
#: No system; user and assistant in turn.
GEMMA_2 = """
{%- if messages[0].role == "system" -%}{{- raise_exception("System role not supported") -}}{%- endif -%}
{%- for m in messages -%}
{%- if (m.role == "user") != (loop.index0 % 2 == 0) -%}
{{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") -}}
{%- endif -%}
{{- "<start_of_turn>" ~ ("model" if m.role == "assistant" else m.role) ~ "\\n" ~ m.content | trim ~ "<end_of_turn>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<start_of_turn>model\\n" -}}{%- endif -%}
"""
#: The system's text stands in the user's first turn; user and assistant in turn.
LLAMA_2 = """
{%- set talk = messages -%}
{%- if messages[0].role == "system" -%}{%- set talk = messages[1:] -%}{%- endif -%}
{%- for m in talk -%}
{%- if (m.role == "user") != (loop.index0 % 2 == 0) -%}
{{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") -}}
{%- endif -%}
{%- if m.role == "user" -%}
{{- "[INST] " -}}
{%- if loop.first and talk | length != messages | length -%}{{- "<<SYS>>\\n" ~ messages[0].content ~ "\\n<</SYS>>\\n\\n" -}}{%- endif -%}
{{- m.content ~ " [/INST]" -}}
{%- else -%}{{- " " ~ m.content ~ " </s>" -}}{%- endif -%}
{%- endfor -%}
"""
#: One system message, at the beginning.
QWEN_3_5 = """
{%- for m in messages -%}
{%- if m.role == "system" and not loop.first -%}{{- raise_exception("System message must be at the beginning.") -}}{%- endif -%}
{{- "<|im_start|>" ~ m.role ~ "\\n" ~ m.content ~ "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""
#: The first message may be the system's; any other system message is left out, without a word.
GPT_OSS = """
{%- if messages[0].role in ["system", "developer"] -%}{{- "<|start|>developer<|message|>" ~ messages[0].content ~ "<|end|>" -}}{%- endif -%}
{%- for m in messages if m.role in ["user", "assistant"] -%}
{{- "<|start|>" ~ m.role ~ "<|message|>" ~ m.content ~ "<|end|>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start|>assistant" -}}{%- endif -%}
"""
CHATML = """
{%- for m in messages -%}{{- "<|im_start|>" ~ m.role ~ "\\n" ~ m.content ~ "<|im_end|>\\n" -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""
#: The template and what it takes, by its model.
STYLES = {
    "mistral": (MISTRAL, Takes("first", repeats=False, after_tools=False)),
    "gemma-2": (GEMMA_2, Takes("never", repeats=False)),
    "llama-2": (LLAMA_2, Takes("first", repeats=False)),
    "qwen-3.5": (QWEN_3_5, Takes("first")),
    "gpt-oss": (GPT_OSS, Takes("first")),
    "chatml": (CHATML, ALL),
}
#: What agents send: several system messages, one after the answer, and two turns of the user in a row.
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "s1"},
    {"role": "system", "content": "s2"},
    {"role": "user", "content": "u1"},
    {"role": "user", "content": "u2"},
    {"role": "system", "content": "s3"},
    {"role": "assistant", "content": "a1"},
    {"role": "system", "content": "s4"},
    {"role": "user", "content": "u3"},
]
WORDS = ("s1", "s2", "s3", "s4", "u1", "u2", "u3", "a1")


def missing(prompt: str, words: Sequence[str] = WORDS) -> list[str]:
    """The words of the conversation that are not in its prompt exactly once."""
    return [word for word in words if prompt.count(word) != 1]
