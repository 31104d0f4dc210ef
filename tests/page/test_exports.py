"""Conversations of other pages' exports."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Page

_IMAGE = "data:image/png;base64,AAAA"
#: As llama-server's page writes it: a root without a text, messages with files.
_THEIRS = {
    "conv": {"id": "c", "name": "theirs", "currNode": "b", "lastModified": 3},
    "messages": [
        {"id": "r", "type": "root", "role": "system", "content": "", "parent": None},
        {
            "id": "a", "type": "text", "role": "user", "content": "Sum up", "parent": "r",
            "extra": [
                {"type": "TEXT", "name": "a.txt", "content": "a file"},
                {"type": "IMAGE", "name": "a.png", "base64Url": _IMAGE},
                {"type": "IMAGE", "name": "b.png", "base64Url": "https://example.org/b.png"},
            ],
        },
        {"id": "b", "type": "text", "role": "assistant", "content": "Done", "reasoningContent": "Hm", "parent": "a"},
    ],
}  # fmt: skip


async def test_a_conversation_of_llama_server(page: "Page") -> None:
    """A conversation of llama-server's page comes with the texts and images that were attached, and without its root, which nobody said."""
    shown = await page.evaluate(
        """async (found) => {
          const { branch } = await import("/page/conversation.js");
          const { readExport } = await import("/page/exports.js");
          return branch(readExport(found)).map(({ role, content, pasted, images, thoughts }) => [role, content, pasted, images, thoughts]);
        }""",
        _THEIRS,
    )

    assert [
        ["user", "Sum up\n\na file", 6, [_IMAGE], ""],
        ["assistant", "Done", 0, [], "Hm"],
    ] == shown
