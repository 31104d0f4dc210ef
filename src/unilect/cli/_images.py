"""
The images of a message in a chat: files, also as a terminal writes one that is dragged into it, and web addresses.
"""

import base64
import re
from pathlib import Path
from urllib.parse import unquote

from unilect.core.errors import InvalidRequest
from unilect.core.image_kinds import image_kind

MAX_BYTES = 10 * 1024 * 1024  # as base64 it is a text that a request may have
_WORD = re.compile(r"""'[^'\n]*'|"[^"\n]*"|(?:\\.|[^\s\\])+""")
_ENDING = re.compile(r"\.(?:png|jpe?g|webp|gif)$", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(.)")


def split_images(message: str) -> tuple[str, list[str]]:
    """
    Take the images out of a message.

    Returns:
        The text that is left, and the images: names of files that are there, and web addresses.

    >>> split_images("What is https://host/a.png ?")
    ('What is ?', ['https://host/a.png'])
    """
    text, end, images = "", 0, list[str]()
    for word in _WORD.finditer(message):
        location = unquote_path(word[0])
        if _is_image(location):
            images.append(location)
            text += message[end : word.start()].rstrip(" ")
            end = word.end()
    return (text + message[end:]).strip() if images else message, images


def unquote_path(word: str) -> str:
    """Return the name of a file that is written as for a shell, or as a `file:` URL."""
    if word[:1] in ("'", '"') and word[-1:] == word[:1] and len(word) > 1:
        word = word[1:-1]
    elif not is_address(word):
        word = _ESCAPED.sub(r"\1", word)
    return unquote(word.removeprefix("file://")) if word.startswith("file:///") else word


def is_address(location: str) -> bool:
    """Return True for a web address."""
    return location[:8].lower().startswith(("http://", "https://"))


def image_url(location: str) -> str:
    """
    Return an image as a request has it: a web address as it is, a file as a `data:` URL.

    Raises:
        InvalidRequest: The file cannot be read, or is no image.
    """
    if is_address(location):
        return location
    try:
        with Path(location).expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"{location}: cannot be read ({why}).") from error
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"{location}: is larger than {MAX_BYTES >> 20} MiB. Make it smaller.")
    kind = image_kind(data)
    if kind and kind != "bmp":  # which not every server takes
        return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    raise InvalidRequest(
        f"{location}: is no image in PNG, JPEG, WebP or GIF. Convert it to one of these."
    )


def _is_image(location: str) -> bool:
    if is_address(location):
        return _ENDING.search(re.split(r"[?#]", location, maxsplit=1)[0]) is not None
    if _ENDING.search(location) is None:
        return False
    try:
        return Path(location).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):
        return False
