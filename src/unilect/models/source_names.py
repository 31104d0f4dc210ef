"""The arguments `[NAME=]SOURCE` of a command line: their names and sources, and names for sources that have none."""

import os
import re
from collections.abc import Iterable
from itertools import chain, count
from urllib.parse import unquote

from unilect.config.kinds import ENGINES
from unilect.config.model import name_from, wrong_name
from unilect.core.errors import ConfigError
from unilect.hub.stores import is_store_name, plain_name
from unilect.hub.web_files import is_address
from unilect.models.sources import ALL, DEMO, SCHEME, is_known, kind_of, split


def name_source(argument: str, taken: Iterable[str] = ()) -> tuple[str, str]:
    """
    Return name and source of an argument `[NAME=]SOURCE`; a source without a name gets one, `*` if it is
    several models.

    >>> named("m=http://gpu:8000/v1")
    ('m', 'http://gpu:8000/v1')
    >>> named("models/qwen3-4b-q8_0.gguf")
    ('qwen3-4b-q8_0', 'models/qwen3-4b-q8_0.gguf')

    Raises:
        ConfigError: The source is nothing that can be served, or no model can have this name.
    """
    if _has_name(argument):
        name, _, source = argument.partition("=")
        return name, source
    if (own := _own_name(argument)) == ALL:
        return ALL, argument
    name = name_from(own)
    known, numbered = set(taken), (f"{name}-{number}" for number in count(2))
    return next(one for one in chain([name], numbered) if one not in known), argument


def rename_note(name: str, argument: str) -> str:
    """
    Return a sentence about the name that `name_source` has given to a source; empty where it is the source's own, or was given.

    Raises:
        ConfigError: As `name_source`.
    """
    if _has_name(argument) or (own := _own_name(argument)) in (name, ALL):
        return ""
    why = ", since another model has that name" if name != name_from(own) else ""
    return (
        f"{argument} is served as `{name}`{why}. Write NAME={argument} for a name of your choice."
    )


def settle(source: str) -> str:
    """
    Return a source that names the same later, when what it names on this machine is gone: that of an engine with its scheme.

    Raises:
        ConfigError: It is nothing that can be served.
    """
    scheme, location = split(source)
    return f"{scheme}:{location}" if kind_of(scheme) in ENGINES else source


def _own_name(source: str) -> str:
    """Return the name that a source brings: of a file without its ending, of a server `default`, of a folder of GGUF files `*`."""
    scheme, location = split(source)
    if scheme == "gguf" and os.path.isdir(location):
        return ALL
    if is_store_name(source):
        location = plain_name(source)
    if scheme == DEMO:
        return DEMO
    if "http" in scheme:
        return "default"
    if is_address(location):
        location = unquote(re.split(r"[?#]", location, maxsplit=1)[0])
    return re.sub(r"\.(gguf|bin)$", "", location.rstrip("/").split("/")[-1], flags=re.I)


def _has_name(argument: str) -> bool:
    """
    Return True where what stands before the first `=` is a model's name, and no part of a path or a URL.

    Raises:
        ConfigError: What follows can be served, and no model can have such a name.
    """
    name, equals, source = argument.partition("=")
    if not equals:
        return False
    if name == ALL or ("/" not in name and wrong_name(name) is None):
        return True
    scheme, known = SCHEME.match(argument), SCHEME.match(source)
    if os.path.exists(argument) or (scheme is not None and is_known(scheme.group(1))):
        return False
    if not os.path.exists(source) and (known is None or not is_known(known.group(1))):
        return False
    if name[:1] in "./~" or wrong_name(name) is not None:
        raise ConfigError(
            f"{argument}: invalid model name `{name}`. Give it 1 to 128 letters, digits and . _ : / @ + - before the "
            f"`=`, such as {name_from(name).strip('-.') or 'model'}={source}."
        )
    return True
