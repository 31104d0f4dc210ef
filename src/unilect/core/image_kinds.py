"""The kinds of images that requests may have, seen at the first bytes of a file."""

#: The bytes that an image begins with, and their place.
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", 0, "png"),
    (b"\xff\xd8\xff", 0, "jpeg"),
    (b"GIF8", 0, "gif"),
    (b"WEBP", 8, "webp"),
    (b"BM", 0, "bmp"),
)


def image_kind(data: bytes) -> str:
    """Return the kind of an image, as a `data:` URL names it; empty for what is none."""
    return next((kind for mark, at, kind in _KINDS if data.startswith(mark, at)), "")
