"""Bodies of the Messages API that several tests send."""

from typing import Any

OBJECT = {"type": "object"}
#: What Claude Code sends first.
HEAD: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 32000,
    "stream": True,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "{}"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=ab12c;"},
        {"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "system", "content": "# Environment"},
    ],
}
#: A tool, a deferred one, and one that Anthropic's servers run.
TOOLS = [
    {"name": "A", "input_schema": OBJECT, "cache_control": {"type": "ephemeral"}},
    {"name": "B", "input_schema": OBJECT, "defer_loading": True},
    {"type": "web_search_20250305", "name": "web_search"},
]
