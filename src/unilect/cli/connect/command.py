"""The output of `unilect connect`, and the files that it writes."""

from collections.abc import Iterator, Mapping

from unilect.cli.connect.clients import CLIENTS, Lines, Text, find_client
from unilect.cli.connect.files import Change, plan, write
from unilect.cli.connect.server import DEFAULT_URL, VARIABLE, ask
from unilect.core.errors import ConfigError, listed


def overview() -> str:
    """The clients, one a line."""
    width = max(map(len, CLIENTS))
    lines = [f"  {name:{width}}  {client.title}" for name, client in CLIENTS.items()]
    return "\n".join(["Name a client: `unilect connect CLIENT`.", "", *lines])


def connect(
    name: str,
    url: str | None,
    model: str | None,
    key: str | None,
    environment: Mapping[str, str],
    *,
    write_files: bool = False,
    replace: bool = False,
) -> Iterator[str]:
    """
    Print a client's lines for a running server, and write them.

    Args:
        name: The client.
        url: The server.
        model: The model that the client begins with; default: the first one that chats.
        key: The server's key.
        environment: What may say where the client's files are.
        write_files: Write the configuration files.
        replace: Replace settings of the user that have other values.

    Yields:
        What is printed, piece by piece.

    Raises:
        ConfigError: There is no such client, server or model, or a file cannot be changed; then none is.
    """
    own, client = find_client(name)
    if replace and not write_files:
        raise ConfigError("--replace: works with --write only. Add --write.")
    exported = key is not None and environment.get(VARIABLE) == key
    server = ask(url or DEFAULT_URL, key, model)._replace(exported=exported)
    lines = client.lines(server, environment)
    yield render_lines(lines)
    if server.further:
        yield f"The server has {server.further} more models; --model NAME takes one of them.\n"
    if not write_files:
        if lines.files:
            yield f"`unilect connect {own} --write` writes the file{'s' if len(lines.files) > 1 else ''}."  # fmt: skip
        return
    if not lines.files:
        raise ConfigError(
            f"--write: {client.title} has no configuration file for this. Nothing was written: use the lines above."
        )
    with_key = client.lines(server._replace(key=key or server.key), environment)
    changes = [plan(file, replace) for file in with_key.files]
    for change in changes:
        yield _apply(change)


def render_lines(lines: Lines) -> str:
    """Return all lines, each block under where it goes."""
    blocks = [f"{one.heading}:\n\n{one.text}" for one in blocks_of(lines)]
    return "\n".join([*blocks, *(f"{note}\n" for note in lines.notes)])


def blocks_of(lines: Lines) -> list[Text]:
    """The files and the other texts, alike."""
    languages = {"dotenv": "sh"}
    files = [Text(one.path, languages.get(one.form, one.form), one.text) for one in lines.files]
    return [*files, *lines.texts]


def _apply(change: Change) -> str:
    """Write a file, and say what was set in it."""
    if not change.needed:
        return f"{change.path}: has these lines already; nothing to write."
    write(change)
    return f"{change.path}: written ({listed(change.names) or 'permissions'})."
