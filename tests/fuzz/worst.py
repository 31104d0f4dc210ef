"""
The largest bodies that do most with what each API has beside OpenAI's chats: many items, parts, tools, documents and options, large ones,
texts that are all escapes, and images.

What a name says has once held the event loop for longer than 50 ms, or might.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial

PNG = "iVBORw0KGgo" + "A" * 9  # how the base64 of every PNG begins
BLANK = {"type": "object", "properties": {}}
LETTERS = "a"
ESCAPED = "aaaaaaaaaa\\n"  # as many escapes as a body may have
_WIDE = "".join(f'"k{n}":' + "0," for n in range(20_000))


#: Those that have held the loop for longer than 50 ms, or made a 500.
MENDED = (
    '/v1/responses: instructions of escapes, "stream":true',
    '/v1/responses: instructions of escapes, "store":false',
    "/v1/responses: hosted tools",
    "/v1/responses: one grammar of a custom tool",
    "/v1/responses: arguments of many values",
    "/v1/responses: a deep tool",
    "/v1/responses: a deep format",
    "/api/chat: images",
    "/api/chat: a format",
    "/api/generate: escapes",
    "/api/embed: escapes",
    "/completion: prompts",
    "/embedding: escapes",
)
#: What is as much work as anybody may ask for, four million tokens to be embedded: its client leaves before its end.
LONG = frozenset({"/api/embed: 2,048 texts"})


def bodies(size: int) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """For each body its name, where it goes, and what makes it; those that were mended come first."""
    every = [*_responses(), *_messages(), *_ollama(), *_rankings(), *_llamacpp()]
    named = [(f"{path}: {name}", path, make) for name, path, make in every]
    assert {*MENDED} <= {name for name, *_ in named}
    for name, path, make in sorted(named, key=lambda one: one[0] not in MENDED):
        yield name, path, partial(_encoded, make, size)


def _encoded(make: Callable[[int], str], size: int) -> bytes:
    body = make(size).encode()
    assert len(body) <= size, len(body)
    return body


def filled(head: str, piece: str, tail: str, size: int, most: int | None = None) -> str:
    """A body with a piece so many times as it takes to make it as large as it may be, or at most so often."""
    count = (size - len(head) - len(tail)) // len(piece)
    return head + piece * (count if most is None else min(count, most)) + tail


def many(head: str, item: str, tail: str, count: int, piece: str = "") -> Callable[[int], str]:
    """A body with so many items, each with its number at `%d`; each holds a piece so many times at `%s` that the body is full."""

    def make(size: int) -> str:
        room = (size - len(head) - len(tail)) // count - len(item) - 4
        one = item.replace("%s", piece * (room // len(piece))) if piece else item
        if "%d" not in item:
            return head + ",".join([one] * count) + tail
        before, after = one.split("%d")
        return head + ",".join([f"{before}{number}{after}" for number in range(count)]) + tail

    return make


def full(head: str, piece: str, tail: str) -> Callable[[int], str]:
    """A body that is filled with a piece."""
    return partial(filled, head, piece, tail)


def some(head: str, piece: str, tail: str, most: int) -> Callable[[int], str]:
    """A body with a piece so often."""
    return lambda size: filled(head, piece, tail, size, most)


_Made = Iterator[tuple[str, str, Callable[[int], str]]]


# fmt: off
def _responses() -> _Made:
    path = "/v1/responses"
    for where in (path, f"{path}/input_tokens", f"{path}/compact"):
        yield "escapes", where, full('{"input":"', ESCAPED, '"}')
    user = '{"role":"user","content":"x"}'
    yield "100,000 items", path, some('{"input":[', "{},", "{}]}", 100_000)
    yield "100,000 numbers", path, some('{"input":[', "7,", "7]}", 100_000)
    yield "4,096 items of letters", path, many('{"input":[', '{"role":"user","content":"%s"}', "]}", 4096, LETTERS)
    yield "items of many parts", path, many('{"input":[', '{"role":"user","content":[' + '{"type":"input_text","text":""},' * 999 + '{"type":"input_text","text":""}]}', "]}", 16)
    yield "items that are left out", path, many('{"input":[' + user + ",", '{"type":"web_search_call","action":{"query":"%s"}}', "]}", 4000, LETTERS)
    for more in ('"stream":true', '"stream":true,"background":true', '"store":false'):
        yield f"instructions of escapes, {more}", path, full('{"input":"x",' + more + ',"max_output_tokens":2,"instructions":"', ESCAPED, '"}')
    yield "arguments of many values", path, full('{"input":[' + user + ',{"type":"function_call","call_id":"a","name":"f","arguments":"[', "{},", '{}]"},{"type":"function_call_output","call_id":"a","output":"r"}]}')
    yield "outputs of many parts", path, some('{"input":[' + user + ',{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":[', '{"type":"input_text","text":""},', '{"type":"input_text","text":""}]}]}', 1000)
    yield "an image", path, full('{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,' + PNG, "A", '"}]}]}')
    yield "grammars of custom tools", path, many('{"input":"x","tools":[', '{"type":"custom","name":"n%d","format":{"type":"grammar","syntax":"lark","definition":"%s"}}', "]}", 120, ESCAPED)
    yield "one grammar of a custom tool", path, full('{"input":"x","tools":[{"type":"custom","name":"n","format":{"type":"grammar","syntax":"lark","definition":"', ESCAPED, '"}}]}')
    yield "tools of namespaces", path, lambda size: json.dumps({"input": "x", "tools": [{"type": "namespace", "name": f"n{n}", "tools": [{"type": "function", "name": f"f{m}", "parameters": BLANK} for m in range(16)]} for n in range(400)]})
    yield "hosted tools", path, many('{"input":"x","max_output_tokens":2,"store":false,"tools":[', '{"type":"web_search","x":"%s"}', '],"tool_choice":"none"}', 1000, ESCAPED)
    yield "a hosted tool of many values", path, some('{"input":"x","max_output_tokens":2,"tools":[{"type":"web_search","x":[', "0,", '0]}],"tool_choice":"none"}', 900_000)
    yield "a deep tool", path, lambda size: '{"input":"x","tools":[{"type":"web_search","x":' + "[" * 975 + "]" * 975 + '}],"tool_choice":"none"}'
    yield "a deep format", path, lambda size: '{"input":"x","text":{"format":{"type":"text","x":' + "[" * 975 + "]" * 975 + "}}}"
    yield "schemas", path, lambda size: json.dumps({"input": "x", "tools": [{"type": "function", "name": f"f{n}", "parameters": {"type": "object", "properties": {f"p{m}": {"type": "string"} for m in range(200)}}} for n in range(100)]})
    yield "allowed tools", path, lambda size: json.dumps({"input": "x", "tools": [{"type": "function", "name": f"f{n}", "parameters": BLANK} for n in range(128)], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f127"}] * 1024}})
    yield "template names", path, lambda size: '{"input":"x","chat_template_kwargs":{' + _WIDE[:-1] + "}}"
    yield "biases", path, lambda size: '{"input":"x","logit_bias":{' + "".join(f'"{n}":1,' for n in range(50_000))[:-1] + "}}"
    yield "a schema of letters", path, full('{"input":"x","text":{"format":{"type":"json_schema","name":"s","schema":{"description":"', LETTERS, '"}}}}')
    yield "items", "/v1/conversations", many('{"items":[', '{"role":"user","content":"%s"}', "]}", 20, ESCAPED)
    yield "items of many values", "/v1/conversations", some('{"items":[{"role":"user","content":"x","y":[', "0,", "0]}]}", 900_000)


def _messages() -> _Made:
    path, user = "/v1/messages", '{"role":"user","content":"x"}'
    for where in (path, f"{path}/count_tokens"):
        yield "escapes", where, full('{"max_tokens":2,"messages":[{"role":"user","content":"', ESCAPED, '"}]}')
        yield "blocks", where, many('{"max_tokens":2,"messages":[{"role":"user","content":[', '{"type":"text","text":"%s","cache_control":{"type":"ephemeral"}}', "]}]}", 1024, LETTERS)
    yield "many blocks", path, many('{"max_tokens":2,"messages":[', '{"role":"user","content":[' + '{"type":"text","text":""},' * 700 + '{"type":"text","text":""}]}', "]}", 24)
    yield "the system's blocks", path, many('{"max_tokens":2,"messages":[' + user + '],"system":[', '{"type":"text","text":"%s","cache_control":{"type":"ephemeral"}}', "]}", 1024, ESCAPED)
    yield "results", path, many('{"max_tokens":2,"messages":[' + user + ',{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},{"role":"user","content":[', '{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"%s"}]}', "]}]}", 1000, ESCAPED)
    yield "calls", path, many('{"max_tokens":2,"messages":[' + user + ',{"role":"assistant","content":[', '{"type":"tool_use","id":"a","name":"f","input":{"a": "%s"}}', ']},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]}', 1000, ESCAPED)
    yield "a call", path, full('{"max_tokens":2,"messages":[' + user + ',{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"a":"', ESCAPED, '"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]}')
    yield "a call of many values", path, some('{"max_tokens":2,"messages":[' + user + ',{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"a":[', "{},", '{}]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]}', 110_000)
    yield "an image", path, full('{"max_tokens":2,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"' + PNG, "A", '"}}]}]}')
    yield "a document", path, full('{"max_tokens":2,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"text","data":"', ESCAPED, '"}}]}]}')
    yield "a thought", path, full('{"max_tokens":2,"messages":[' + user + ',{"role":"assistant","content":[{"type":"thinking","thinking":"', ESCAPED, '","signature":"x"}]}]}')
    yield "tools", path, lambda size: json.dumps({"max_tokens": 2, "messages": [json.loads(user)], "tools": [{"name": f"f{n}", "input_schema": {"type": "object", "properties": {f"p{m}": {"type": "string"} for m in range(5)}}, "defer_loading": True, "cache_control": {"type": "ephemeral"}} for n in range(1024)]})
    yield "descriptions", path, many('{"max_tokens":2,"messages":[' + user + '],"tools":[', '{"name":"f%d","input_schema":{"type":"object"},"description":"%s"}', "]}", 120, ESCAPED)
    yield "metadata", path, some('{"max_tokens":2,"messages":[' + user + '],"metadata":{"a":[', "1.5,", "0]}}", 900_000)


def _ollama() -> _Made:
    chat, user = "/api/chat", '{"role":"user","content":"x"}'
    head = '{"model":"demo","messages":['
    yield "escapes", chat, full(head + '{"role":"user","content":"', ESCAPED, '"}]}')
    yield "options", chat, lambda size: head + user + '],"options":{' + _WIDE[:-1] + "}}"
    yield "stop words", chat, some(head + user + '],"options":{"stop":[', '"a",', '"a"]}}', 100_000)
    yield "numbers", chat, lambda size: head + user + '],"options":{"num_predict":1e308,"top_k":1e308,"num_ctx":1e308}}'
    yield "images", chat, many(head, '{"role":"user","images":[' + '"data:image/",' * 999 + '"data:image/"]}', "]}", 110)
    yield "an image", chat, full(head + '{"role":"user","images":["' + PNG, "A", '"]}]}')
    yield "arguments", chat, full(head + user + ',{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":"', ESCAPED, '"}}}]}]}')
    yield "arguments of many values", chat, some(head + user + ',{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":[', "{},", "{}]}}}]}]}", 110_000)
    yield "tools", chat, lambda size: json.dumps({"model": "demo", "messages": [json.loads(user)], "tools": [{"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object", "properties": {f"p{m}": {"type": "string"} for m in range(150)}}}} for n in range(128)]})
    yield "a format", chat, full(head + user + '],"format":{"description":"', LETTERS, '"}}')
    yield "a context", "/api/generate", some('{"model":"demo","prompt":"x","context":[', "1000000000,", "0]}", 999_000)
    yield "escapes", "/api/generate", full('{"model":"demo","prompt":"', ESCAPED, '"}')
    yield "a raw text", "/api/generate", full('{"model":"demo","raw":true,"prompt":"', ESCAPED, '"}')
    yield "escapes", "/api/embed", full('{"model":"demo","input":"', ESCAPED, '"}')
    yield "2,048 texts", "/api/embed", many('{"model":"demo","input":[', '"%s"', "]}", 2048, ESCAPED)
    yield "100,000 texts", "/api/embed", some('{"model":"demo","input":[', '"a",', '"a"]}', 100_000)
    yield "escapes", "/api/embeddings", full('{"model":"demo","prompt":"', ESCAPED, '"}')


def _rankings() -> _Made:
    head = '{"model":"ranker","query":"a","documents":['
    for piece in (LETTERS, ESCAPED):
        yield f"2,048 documents of {piece!r}", "/v1/rerank", many(head, '{"text":"%s"}', '],"return_documents":true}', 2048, piece)
    yield "documents of many fields", "/v1/rerank", lambda size: head + '{"text":"a",' + _WIDE[:-1] + "}]}"
    yield "documents that are pictures", "/v2/rerank", full(head + '{"image":"', LETTERS, '"}]}')
    yield "100,000 documents", "/rerank", some(head, '"",', '""]}', 100_000)
    yield "a query", "/rerank", full('{"model":"ranker","texts":["b"],"query":"', ESCAPED, '"}')
    yield "texts", "/rerank", many('{"model":"ranker","query":"a","return_text":true,"truncate":true,"texts":[', '"%s"', "]}", 2048, ESCAPED)


def _llamacpp() -> _Made:
    head = '{"model":"filler","n_predict":2,"input_prefix":"a","input_suffix":"b",'
    yield "snippets", "/infill", many(head + '"input_extra":[', '{"filename":"f","text":"%s"}', "]}", 128, ESCAPED)
    yield "100,000 snippets", "/infill", some(head + '"input_extra":[', "{},", "{}]}", 100_000)
    yield "what stands before", "/infill", full('{"model":"filler","input_suffix":"b","input_prefix":"', ESCAPED, '"}')
    yield "pieces of prompts", "/completion", some('{"n_predict":2,"prompt":[', '"a",5,', "5]}", 32_000)
    yield "prompts", "/completion", some('{"n_predict":2,"prompt":[', '["a",5],', '["a",5]]}', 30_000)
    yield "biases", "/completion", some('{"prompt":"a","n_predict":2,"logit_bias":[', "[5,1.5],", "[5,1.5]]}", 100_000)
    yield "scales", "/completion", some('{"model":"adapted","prompt":"a","n_predict":2,"lora":[', '{"id":0,"scale":1},', '{"id":0,"scale":1}]}', 20_000)
    yield "scales", "/lora-adapters?model=adapted", some("[", '{"id":0,"scale":1},', '{"id":0,"scale":1}]', 20_000)
    yield "no scales", "/lora-adapters?model=adapted", full('"', ESCAPED, '"')
    yield "escapes", "/embedding", full('{"content":"', ESCAPED, '"}')
    yield "texts", "/embedding", many('{"content":[', '"%s"', "]}", 2048, ESCAPED)
    for path in ("/apply-template", "/v1/chat/completions/input_tokens"):
        yield "turns", path, many('{"messages":[', '{"role":"user","content":"%s"}', "]}", 2048, ESCAPED)
    yield "template names", "/apply-template", lambda size: '{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{' + _WIDE[:-1] + "}}"
    yield "bare base64", "/v1/chat/completions", full('{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"' + PNG, "A", '"}}]}]}')
    yield "blanks in base64", "/v1/chat/completions", full('{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"' + PNG, "A ", '"}}]}]}')
