"""
Conversations with servers that cannot run here, as files: tests/recorded/*.txt, recorded, or written from a server's source.

A file has a section for each request: a line `==== METHOD PATH`, and the answer as it goes over the wire, its head with line feeds
alone; the line feed before the next section is not a part of it. A server that replays one closes after each answer.
"""

from pathlib import Path

from support.backends.scripted import Exchange, Script

_FOLDER = Path(__file__).parents[2] / "recorded"


def answers(name: str) -> dict[str, bytes]:
    """The answers of a conversation, by `METHOD PATH`."""
    found = {}
    for section in (_FOLDER / f"{name}.txt").read_bytes().split(b"==== ")[1:]:
        request, _, answer = section.removesuffix(b"\n").partition(b"\n")
        head, _, body = answer.partition(b"\n\n")
        found[request.decode()] = head.replace(b"\n", b"\r\n") + b"\r\n\r\n" + body
    return found


def body(name: str, request: str) -> bytes:
    """The body of one answer."""
    return answers(name)[request].partition(b"\r\n\r\n")[2]


def replay(name: str, prefix: str = "", **instead: bytes) -> Script:
    """
    A script that plays a conversation.

    Args:
        prefix: Stands before every path.
        instead: Other answers to POSTs, by the last part of the path.
    """
    known = answers(name)

    async def script(exchange: Exchange) -> None:
        method, path, _ = exchange.head.split(b"\r\n")[0].decode().split(" ")
        path = path.removeprefix(prefix)
        answer = instead.get(path.removeprefix("/")) if method == "POST" else None
        await exchange.send(answer if answer is not None else known[f"{method} {path}"])
        exchange.close()

    return script
