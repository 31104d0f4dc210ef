"""The settings of the page: the table `[page]` of a configuration."""

from typing import Annotated

from msgspec import Meta

from unilect.config.option import Table, option


class PageConfig(Table, frozen=True, kw_only=True):
    """The page for browsers: the table `[page]`."""

    on: bool = option(
        True,
        "Serve the page; `page = false` is short for `on = false` in it. Without it `/` lists the models.",
    )
    title: Annotated[str, Meta(min_length=1, max_length=60)] = option(
        "unilect", "The name of this server at the top of the page and of its tab.", live=True
    )
    model: str | None = option(
        None,
        "The model that a new conversation begins with. Default: the server's default model.",
        live=True,
        example="demo",
    )
    system: Annotated[str, Meta(max_length=20_000)] = option(
        "", "The system prompt that a new conversation begins with.", live=True
    )
    steer: bool = option(
        True,
        "Serve the admin API below `/admin` of each address, too, for the page: with a key of `[admin]`, or with the one that "
        "`unilect page` takes from a running server. Clients' keys open nothing there.",
    )
