"""Sound bodies for every endpoint, with as many of its fields as can stand together; tests change them."""

from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 5}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
}
SAMPLING: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 1,
    "seed": 7,
    "stop": ["x"],
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"5": 1},
    "top_k": 40,
    "min_p": 0.1,
    "typical_p": 0.9,
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "stream": False,
    "stream_options": {"include_usage": True},
    "user": "someone",
    "metadata": {"a": "b"},
}
MESSAGE: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 2,
    "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "unilect1.aG0="},
                {"type": "tool_use", "id": "c", "name": "get_weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "is_error": True,
                    "content": [
                        {"type": "text", "text": "x"},
                        {"type": "tool_reference", "tool_name": "f"},
                    ],
                },
                {"type": "document", "title": "T", "source": {"type": "text", "data": "D"}},
                {"type": "search_result", "title": "T", "source": "s", "content": []},
            ],
        },
        {"role": "system", "content": "Now."},
    ],
    "tools": [
        {"name": "get_weather", "input_schema": TOOL["function"]["parameters"]},
        {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "high"},
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "metadata": {"user_id": "a"},
    "stream": False,
    "thread": {"type": "create"},
}
RESPONSE: dict[str, Any] = {
    "model": "demo",
    "max_output_tokens": 2,
    "instructions": "Be short.",
    "input": [
        {"role": "developer", "content": "# Environment"},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "dW5pbGVjdDpobQ=="},
        {"type": "function_call", "call_id": "a", "name": "f", "namespace": "ns", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "r"}]},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "done"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}, {"type": "refusal", "refusal": "no"}]},
        {"type": "compaction", "encrypted_content": "dW5pbGVjdDpobQ=="},
    ],
    "tools": [
        {"type": "namespace", "name": "ns", "description": "d", "tools": [{"type": "function", "name": "f", "strict": False, "parameters": TOOL["function"]["parameters"]}]},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto", "context": "x"},
    "include": ["reasoning.encrypted_content"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "truncation": "auto",
    "metadata": {"a": "b"},
    "store": True,
    "background": False,
    "stream": False,
    "max_tool_calls": 3,
    "prompt_cache_key": "k",
}  # fmt: skip
NATIVE: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 40,
    "mirostat": 0,
    "stop": ["x"],
    "cache_prompt": True,
    "id_slot": -1,
    "n_keep": 0,
    "grammar": "",
    "image_data": [],
}
OPTIONS: dict[str, Any] = {
    "num_predict": 2,
    "num_ctx": 4096,
    "temperature": 0.5,
    "top_k": 40.0,
    "seed": 7,
    "stop": ["x"],
    "use_mmap": True,
}
#: The endpoints that are attacked by themselves.
OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/")
#: Bodies that are answered, and where. `{response}` and the like stand for ids of what is stored, see `attack.Target`.
VALID: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        SAMPLING
        | {
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "bob"},
            ],
            "max_completion_tokens": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "response_format": {"type": "text"},
            "reasoning_effort": "none",
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            "parallel_tool_calls": False,
            "max_tokens": 2,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "function_call": CALL["function"]},
                {"role": "function", "name": "get_weather", "content": "sunny"},
            ],
            "functions": [TOOL["function"]],
            "function_call": "auto",
            "max_tokens": 2,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "A colour?"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "colour",
                    "strict": True,
                    "schema": {"type": "object", "properties": {"name": {"enum": ["red"]}}},
                },
            },
            "max_tokens": 2,
        },
    ),
    (
        "/v1/completions",
        SAMPLING | {"prompt": ["Once", "One day"], "echo": True, "best_of": 1, "suffix": None},
    ),
    ("/v1/completions", SAMPLING | {"prompt": [5, 6, 7], "logprobs": 2}),
    (
        "/v1/embeddings",
        {"model": "demo", "input": ["a", "b"], "encoding_format": "float", "dimensions": 4},
    ),
    ("/v1/responses", RESPONSE),
    ("/v1/responses", RESPONSE | {"stream": True}),
    (
        "/v1/responses/input_tokens",
        {"model": "demo", "input": RESPONSE["input"], "tools": RESPONSE["tools"]},
    ),
    ("/v1/responses/compact", {"model": "demo", "input": "Hi", "instructions": "Be short."}),
    ("/v1/responses", RESPONSE | {"input": "Hi", "previous_response_id": "{response}"}),
    (
        "/v1/responses",
        {
            "input": [
                {"type": "item_reference", "id": "{item}"},
                {"role": "user", "content": "Hi"},
            ],
            "conversation": {"id": "{conversation}"},
            "max_output_tokens": 2,
            "truncation": "auto",
        },
    ),
    ("/v1/responses", RESPONSE | {"background": True, "stream": True, "include": []}),
    ("/v1/responses/{background}/cancel", {}),
    ("/v1/conversations", {"metadata": {"a": "b"}, "items": RESPONSE["input"][:3]}),
    ("/v1/conversations/{conversation}", {"metadata": {"a": "b"}}),
    ("/v1/conversations/{conversation}/items", {"items": RESPONSE["input"]}),
    ("/v1/messages", MESSAGE),
    ("/v1/messages", MESSAGE | {"stream": True}),
    ("/v1/messages/count_tokens", MESSAGE),
    (
        "/",
        {"prompt": "Hi", "history": [["a", "b"]], "max_length": 2, "top_p": 0.7, "temperature": 1},
    ),
    (
        "/completion",
        NATIVE
        | {"prompt": "Once", "n_predict": 2, "n_probs": 2, "logit_bias": [[5, 1.5], [6, False]]},
    ),
    ("/completion", NATIVE | {"prompt": ["Once", 5, "day"], "n_predict": 2, "stream": True}),
    ("/completion", {"prompt": [["a", 5], {"prompt_string": "b"}, "c"], "n_predict": 2}),
    (
        "/completion",
        NATIVE | {"model": "adapted", "lora": [{"id": 0, "scale": 0.5}], "n_predict": 2},
    ),
    ("/infill", {"model": "filler", "input_prefix": "a", "input_suffix": "b", "n_predict": 2}),
    (
        "/apply-template",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "chat_template_kwargs": {"a": 1},
            "tools": [TOOL],
        },
    ),
    (
        "/v1/chat/completions/input_tokens",
        {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False},
    ),
    (
        "/infill",
        {
            "model": "filler",
            "input_prefix": "a",
            "input_extra": [{"text": "b", "filename": "c"}],
            "prompt": "d",
            "n_predict": 2,
        },
    ),
    ("/v1/completions", {"prompt": "a", "lora": [{"id": 0, "scale": 1}], "input_extra": []}),
    ("/tokenize", {"content": ["Hello", 5], "add_special": False, "with_pieces": False}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/embedding", {"content": ["a", "b"]}),
    (  # without `keep_alive`: 0 would stop the engine, whose process is watched
        "/api/chat",
        {
            "model": "demo:latest",
            "messages": [
                {"role": "user", "content": "Weather?", "images": []},
                {
                    "role": "assistant",
                    "thinking": "hm",
                    "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1]}}}],
                },
                {"role": "tool", "content": "sunny", "tool_name": "f"},
            ],
            "tools": [TOOL],
            "think": False,
            "options": OPTIONS,
        },
    ),
    (
        "/api/chat",
        {
            "model": "demo",
            "messages": [{"role": "user", "content": "Hi"}],
            "format": {"type": "object", "properties": {"a": {"type": "boolean"}}},
            "stream": False,
            "logprobs": True,
            "top_logprobs": 1,
            "options": OPTIONS,
        },
    ),
    (
        "/api/generate",
        {
            "model": "demo",
            "prompt": "Hi",
            "system": "Be short.",
            "context": [6909557, 23, 1965185883, 577922419, 1766335020, 6118690],
            "suffix": "",
            "options": OPTIONS,
        },
    ),
    ("/api/generate", {"model": "demo", "prompt": "Once", "raw": True, "options": OPTIONS}),
    ("/api/embed", {"model": "demo", "input": ["a", "b"], "dimensions": 4, "truncate": True}),
    ("/api/embeddings", {"model": "demo", "prompt": "a", "options": OPTIONS}),
    ("/api/show", {"model": "demo", "verbose": True}),
    ("/api/pull", {"model": "demo", "stream": True}),
    (
        "/v1/rerank",
        {
            "model": "ranker",
            "query": "a",
            "documents": ["b", {"text": "c", "title": "t"}],
            "top_n": 1,
            "return_documents": True,
            "max_tokens_per_doc": 5,
        },
    ),
    ("/v2/rerank", {"model": "ranker", "query": "a", "documents": ["b"], "rank_fields": ["text"]}),
    (
        "/rerank",
        {"model": "ranker", "query": "a", "texts": ["b"], "raw_scores": True, "truncate": True},
    ),
    ("/slots/0?action=erase", {"filename": "a"}),
]
OF_OPENAI = [one for one in VALID if one[0] in OPENAI]
OF_APIS = [one for one in VALID if one[0] not in OPENAI]
ADAPTERS = "/lora-adapters?model=adapted"
#: What is asked without a body, and what may stand in its query.
ASKED = [
    ("GET", "/v1/responses/{response}"), ("GET", "/v1/responses/{background}"), ("GET", "/v1/responses/{response}/input_items"),
    ("GET", "/v1/conversations/{conversation}"), ("GET", "/v1/conversations/{conversation}/items"),
    ("GET", "/v1/conversations/{conversation}/items/{item}"), ("DELETE", "/v1/conversations/{conversation}/items/none"),
    ("DELETE", "/v1/responses/none"), ("DELETE", "/v1/conversations/none"), ("GET", "/v1/responses/%00%ff"), ("GET", "/slots"),
    ("GET", "/lora-adapters"), ("GET", "/props"), ("GET", "/api/tags"), ("GET", "/api/ps"), ("GET", "/v1/models"),
]  # fmt: skip
IN_QUERY = ["limit", "order", "after", "before", "include", "include[]", "stream", "starting_after", "model", "fail_on_no_slot", "%00"]  # fmt: skip
QUERIES = ["", "0", "1", "-1", "100", "101", "9" * 30, "1.5", "true", "asc", "desc", "{item}", "demo", "adapted", "%00", "%ff", "%C2%B2", "%EF%BC%95", "a" * 3000]  # fmt: skip
