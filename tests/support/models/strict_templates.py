"""
Chat templates with the rules of models' own, in short: what each takes of a conversation, and the words with which it refuses.

Sources: the `chat_template` of Mistral-7B-Instruct-v0.3, Ministral-3-14B, gemma-2-9b-it, gemma-3-4b-it, Llama-2-7b-chat, Llama-3.3-70B,
Qwen3.5, gpt-oss-20b and DeepSeek-R1
"""

from collections.abc import Sequence
from typing import Any

from unilect.templates.takes import ALL, Takes

#: The calls of a turn `m`, and the arguments of a call `c`, a text or an object.
_CALLS = '{%- for c in m.tool_calls or [] -%}{{- " " ~ c.function.name ~ " " ~ ARGUMENTS -}}{%- endfor -%}'
_ARGUMENTS = (
    "(c.function.arguments if c.function.arguments is string else c.function.arguments | tojson)"
)


def _filled(template: str, arguments: str = _ARGUMENTS) -> str:
    return template.replace("CALLS;", _CALLS).replace("ARGUMENTS", arguments)


#: The first message is the system's, or none is; roles take turns, calls and results aside; a result is followed by the assistant; ids of
#: calls are of one form; a text beside a call is left out.
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
{%- elif m.role == "tool" -%}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 -%}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") -}}{%- endif -%}
{{- "[TOOL_RESULTS]" ~ m.content ~ "[CALL_ID]" ~ m.tool_call_id ~ "[/TOOL_RESULTS]" -}}
{%- elif m.tool_calls -%}
{%- for c in m.tool_calls -%}
{%- if c.id | length != 9 -%}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") -}}{%- endif -%}
{{- "[TOOL_CALLS]" ~ c.function.name ~ "[CALL_ID]" ~ c.id ~ "[ARGS]" ~ ARGUMENTS -}}
{%- endfor -%}
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
#: One call in a turn, and no text beside it.
LLAMA_3 = """
{%- for m in messages -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}{{- raise_exception("This model only supports single tool-calls at once!") -}}{%- endif -%}
{%- set c = m.tool_calls[0] -%}
{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" ~ c.function.name ~ ARGUMENTS ~ "<|eot_id|>" -}}
{%- else -%}{{- "<|start_header_id|>" ~ m.role ~ "<|end_header_id|>\\n\\n" ~ m.content ~ "<|eot_id|>" -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" -}}{%- endif -%}
"""
#: Roles take turns, and each says something; a result is of a call before it.
MINISTRAL_3 = """
{%- set seen = namespace(role="", calls=false) -%}
{%- for m in messages -%}
{%- if m.role == "system" and not loop.first -%}{{- raise_exception("Only user, assistant and tool roles are supported, got system.") -}}{%- endif -%}
{%- if m.role in ["user", "assistant"] and not m.tool_calls -%}
{%- if m.role == seen.role -%}{{- raise_exception("conversation roles must alternate user and assistant roles except for tool calls and results.") -}}{%- endif -%}
{%- set seen.role = m.role -%}
{%- endif -%}
{%- if m.role == "assistant" and not m.content and not m.tool_calls -%}{{- raise_exception("Assistant message must have a string or a list of chunks in content or a list of tool calls.") -}}{%- endif -%}
{%- if m.role == "tool" and not seen.calls -%}{{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") -}}{%- endif -%}
{%- if m.role != "tool" -%}{%- set seen.calls = m.tool_calls | length > 0 if m.tool_calls else false -%}{%- endif -%}
{{- "[" ~ m.role ~ "]" ~ m.content -}}CALLS;
{%- endfor -%}
"""
#: One system message, at the beginning; a user must have said something.
QWEN_3_5 = """
{%- if "user" not in messages | map(attribute="role") -%}{{- raise_exception("No user query found in messages.") -}}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == "system" and not loop.first -%}{{- raise_exception("System message must be at the beginning.") -}}{%- endif -%}
{{- "<|im_start|>" ~ m.role ~ "\\n" ~ m.content -}}CALLS;{{- "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""
#: The first message may be the system's; any other system message is left out, without a word, and so is any call of a turn but the first.
GPT_OSS = """
{%- if messages[0].role in ["system", "developer"] -%}{{- "<|start|>developer<|message|>" ~ messages[0].content ~ "<|end|>" -}}{%- endif -%}
{%- for m in messages if m.role in ["user", "assistant", "tool"] -%}
{{- "<|start|>" ~ m.role ~ "<|message|>" ~ m.content ~ "<|end|>" -}}
{%- if m.tool_calls -%}{%- set c = m.tool_calls[0] -%}{{- "<|start|>assistant to=functions." ~ c.function.name ~ "<|message|>" ~ ARGUMENTS ~ "<|call|>" -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start|>assistant" -}}{%- endif -%}
"""
CHATML = """
{%- for m in messages -%}{{- "<|im_start|>" ~ m.role ~ "\\n" ~ m.content -}}CALLS;{{- "<|im_end|>\\n" -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""
#: The template and what it takes, by its model.
_STYLES = {
    "mistral": (
        MISTRAL,
        Takes(
            "first",
            ends=False,
            repeats=False,
            after_tools=False,
            opens=False,
            alone=False,
            ids=False,
            texts=False,
            between=False,
            unanswered=False,
            strays=False,
        ),
    ),
    "ministral-3": (
        MINISTRAL_3,
        Takes(
            "first",
            repeats=False,
            after_tools=False,
            empties=False,
            between=False,
            unanswered=False,
            strays=False,
        ),
    ),
    "gemma-2": (GEMMA_2, Takes("never", repeats=False, opens=False, alone=False, calls=False)),
    "llama-2": (LLAMA_2, Takes("first", repeats=False, opens=False, alone=False, calls=False)),
    "llama-3": (LLAMA_3, Takes(several=False, texts=False)),
    "qwen-3.5": (QWEN_3_5, Takes("first", alone=False)),
    "gpt-oss": (GPT_OSS, Takes("first", several=False)),
    "deepseek": (CHATML, Takes(objects=False)),
    "chatml": (CHATML, ALL),
}
STYLES = {
    name: (_filled(template, "c.function.arguments" if name == "deepseek" else _ARGUMENTS), taken)
    for name, (template, taken) in _STYLES.items()
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
_CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "u1"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": f"call_{n:024}",
                "type": "function",
                "function": {"name": f"f{n}", "arguments": given},
            }
            for n, given in ((1, '{"a": "v1"}'), (2, '{"a": "v2'))
        ],
    },
    {"role": "tool", "content": "t1", "tool_call_id": f"call_{1:024}"},
    {"role": "tool", "content": "t2", "tool_call_id": f"call_{2:024}"},
]
_OLDER: list[dict[str, Any]] = [
    {"role": "user", "content": "u1"},
    {"role": "assistant", "content": None, "function_call": {"name": "f1", "arguments": "{}"}},
    {"role": "function", "content": "t1", "name": "f1"},
]
#: Conversations with calls, in the newer form and in the older, and the words in their prompts.
CALLED = (
    (_CALLED, ("u1", "f1", "v1", "t1", "f2", "v2", "t2")),
    (_OLDER, ("u1", "f1", "t1")),
)
WORDS = ("s1", "s2", "s3", "s4", "u1", "u2", "u3", "a1")


def missing(prompt: str, words: Sequence[str] = WORDS) -> list[str]:
    """The words of the conversation that are not in its prompt exactly once."""
    return [word for word in words if prompt.count(word) != 1]
