"""URLs of other APIs that clients try, and the alternatives."""

_CHAT = "POST /v1/chat/completions"
#: path -> the API that it belongs to, and what there is for it
_NOT_YET = {
    "/v1/responses": ("OpenAI's Responses API", _CHAT),
    "/responses": ("OpenAI's Responses API", _CHAT),
    "/v1/messages": ("Anthropic's Messages API", _CHAT),
    "/v1/messages/count_tokens": ("Anthropic's Messages API", "POST /tokenize"),
    "/api/chat": ("Ollama's API", _CHAT),
    "/api/generate": ("Ollama's API", "POST /v1/completions"),
    "/api/tags": ("Ollama's API", "GET /v1/models"),
    "/api/show": ("Ollama's API", "GET /v1/models/{model}"),
    "/api/embed": ("Ollama's API", "POST /v1/embeddings"),
    "/api/embeddings": ("Ollama's API", "POST /v1/embeddings"),
}


def hint(path: str) -> str:
    """What to say of a URL that is not here; empty where nothing is known of it."""
    found = _NOT_YET.get(path.rstrip("/"))
    return f" {found[0]} is not supported yet; use {found[1]}." if found is not None else ""
