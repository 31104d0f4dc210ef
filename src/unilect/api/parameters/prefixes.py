"""
Removal of what an agent changes at the beginning of its prompts in each request, so that prompt caches find what follows.

Claude Code's first system text is `x-anthropic-billing-header: cc_version=...; cch=...;`, whose last part changes. It is of use to Anthropic's
own server only. Nothing else of a prompt is removed or moved: a date in a prompt reaches the model.
"""

from msgspec.structs import replace

from unilect.core.requests import SYSTEM_ROLES, ChatRequest, Message, TextPart

_BILLING = "x-anthropic-billing-header:"
_BETWEEN = "\n\n"  # what dialects put between system texts
_MOST = 8  # in one text


def without_billing(request: ChatRequest) -> ChatRequest:
    """A request whose system messages have no billing header; one that says nothing else is left out."""
    for message in request.messages:
        if message.role not in SYSTEM_ROLES:
            break
        if type(message.content) is not str or _BILLING in message.content:
            return _with_changed(request)
    return request


def _with_changed(request: ChatRequest) -> ChatRequest:
    """A request whose system messages may have the header, without it."""
    messages: list[Message] = []
    for message in request.messages:
        if message.role not in SYSTEM_ROLES:
            break
        messages.append(message)
    changed = [cut for message in messages if (cut := _without(message)) is not None]
    rest = request.messages[len(messages) :]
    if changed == messages or not (changed or rest):
        return request
    return request.changed(messages=[*changed, *rest])


def _without(message: Message) -> Message | None:
    """A message without the header; the same one where it has none, and None where it is nothing else."""
    content = message.content
    if isinstance(content, str):
        text = _cut(content)
        return message if text == content else replace(message, content=text) if text else None
    if not isinstance(content, list):
        return message
    parts = [
        part
        for part in content
        if not (isinstance(part, TextPart) and part.text.startswith(_BILLING))
    ]
    if len(parts) == len(content):
        return message
    return replace(message, content=parts) if parts else None


def _cut(text: str) -> str:
    """A text without the header's line, where that begins the text, or one of those that it was joined of."""
    at = 0
    for _ in range(_MOST):
        if (at := text.find(_BILLING, at)) < 0:
            break
        if at and text[at - len(_BETWEEN) : at] != _BETWEEN:
            at += len(_BILLING)
            continue
        end = text.find("\n", at)
        rest = "" if end < 0 else text[end:].lstrip("\n")
        text = text[:at] + rest if rest else text[:at].rstrip("\n")
    return text
