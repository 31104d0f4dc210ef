"""The output of `unilect connect`, and the files that it writes."""

from unilect.cli._screen import tell
from unilect.cli.connect.files import Change, plan, write_file
from unilect.cli.connect.server import DEFAULT_URL, ask
from unilect.config.server import process_environment
from unilect.core.errors import ConfigError, join_names
from unilect.web.connect.clients import CLIENTS, find_client
from unilect.web.connect.lines import VARIABLE, Lines


def overview() -> str:
    """List the clients, one a line."""
    width = max(map(len, CLIENTS))
    lines = [f"  {name:{width}}  {client.title}" for name, client in CLIENTS.items()]
    return "\n".join(["Name a client: `unilect connect CLIENT`.", "", *lines])


def connect(
    client: str | None,
    url: str | None,
    model: str | None,
    api_key: str | None,
    write: bool,
    replace: bool,
) -> None:
    """
    Print a client's lines for a running server, and write them; without a client list them all.

    Args:
        model: The model that the client begins with; default: the first one that chats.
        write: Write the configuration files.
        replace: Replace settings of the user that have other values.

    Raises:
        ConfigError: There is no such client, server or model, or a file cannot be changed; then none is.
    """
    if client is None:
        tell(overview())
        return
    name, found = find_client(client)
    if replace and not write:
        raise ConfigError("--replace: works with --write only. Add --write.")
    environment = process_environment()
    exported = api_key is not None and environment.get(VARIABLE) == api_key
    server = ask(url or DEFAULT_URL, api_key, model)._replace(exported=exported)
    lines = found.lines(server, environment)
    tell(render_lines(lines), flush=True)
    if server.further:
        tell(f"The server has {server.further} more models; --model NAME takes one of them.\n")
    if not write:
        if lines.files:
            tell(f"`unilect connect {name} --write` writes the file{'s' if len(lines.files) > 1 else ''}.")  # fmt: skip
        return
    if not lines.files:
        raise ConfigError(
            f"--write: {found.title} has no configuration file for this. Nothing was written: use the lines above."
        )
    with_key = found.lines(server._replace(key=api_key or server.key), environment)
    for change in [plan(file, replace) for file in with_key.files]:
        tell(_apply(change), flush=True)


def render_lines(lines: Lines) -> str:
    """Return all lines, each block under where it goes."""
    blocks = [f"{one.heading}:\n\n{one.text}" for one in lines.blocks]
    return "\n".join([*blocks, *(f"{note}\n" for note in lines.notes)])


def _apply(change: Change) -> str:
    """Write a file, and say what was set in it."""
    if not change.needed:
        return f"{change.path}: has these lines already; nothing to write."
    write_file(change)
    return f"{change.path}: written ({join_names(change.names) or 'permissions'})."
