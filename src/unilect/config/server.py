"""
The settings of the server, and what they must not contradict.

Everything is a frozen Struct. A field's description is its documentation: docs/configuration.md, `--help` and
unilect.example.toml are made from it or compared with it. The only reader of the environment; `config_load` makes settings of it.
"""

import os
import re
from collections.abc import Container, Mapping
from ipaddress import IPv6Address, ip_network
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from unilect.config.model import NAME, ModelConfig, described
from unilect.config.values import OptionPath, dotted, nearest, shown
from unilect.errors import ConfigError, Mistakes

TABLES = ("models", "listeners")  # options that only a file can set

Dialect: TypeAlias = Literal["openai", "llamacpp", "chatglm", "fastchat", "alpaca"]


class ListenerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A further address, a table of `[[listeners]]`; what it leaves out is as in `Config`."""

    port: Annotated[int, Meta(ge=0, le=65535)]
    host: str = "127.0.0.1"
    dialect: Dialect | None = None
    done: bool | None = None
    on_unknown_model: Literal["error", "default"] | None = None


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole server."""

    host: Annotated[str, described("The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, described("The port to listen on; 0 for a free one.", ge=0, le=65535)] = (
        8000
    )
    api_keys: Annotated[
        list[str],
        described(
            "Keys that clients must send, as `Authorization: Bearer KEY`. Needed on every address that is not loopback. "
            "`$NAME` takes a key from the environment. `UNILECT_API_KEY` is the name that clients read theirs by, too."
        ),
    ] = []
    insecure_no_auth: Annotated[
        bool, described("Listen beyond loopback without keys, for everybody who can reach it.")
    ] = False
    allowed_hosts: Annotated[
        list[str],
        described(
            "Host names that requests may name, beside those it listens on; `*` for any. This keeps a web page whose name "
            "resolves to this server (DNS rebinding) out. A server that listens on every address takes any name where there are "
            "keys; without keys it takes addresses, its own name, and names that are no domains: without a dot, or in `.local`, "
            "`.lan`, `.internal`, `.home.arpa`."
        ),
    ] = []
    allowed_origins: Annotated[
        list[str],
        described(
            "Web origins whose pages may call this server (CORS); `*` for any, without credentials."
        ),
    ] = []
    allow_credentials: Annotated[
        bool,
        described(
            "Pages of the named origins may send cookies and the like (CORS); not together with `*`, which would let every page "
            "act for whoever looks at it."
        ),
    ] = False
    allowed_methods: Annotated[
        list[str],
        described(
            "The methods that pages of other origins may use (CORS). Default: GET, POST and OPTIONS, which are all there are."
        ),
    ] = []
    allowed_headers: Annotated[
        list[str],
        described(
            "Headers that pages of other origins may send beside those that clients of OpenAI's API do (CORS); `*` for any."
        ),
    ] = []
    max_body_bytes: Annotated[
        int, described("The longest request body that is read.", ge=1024, le=2**31)
    ] = 16 * 1024 * 1024
    max_connections: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        described(
            "The most connections at a time. When all are in use, the one that has been silent for longest is closed for a new "
            "one, and one that is being answered never. Default: as many as the open files of the process allow (`ulimit -Hn`)."
        ),
    ] = None
    max_connections_per_address: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        described(
            "The most connections from one address other than loopback. Default: no limit of its own, since many clients may "
            "come through one proxy."
        ),
    ] = None
    shutdown_grace_s: Annotated[
        float, described("How long running answers may go on after SIGTERM.", ge=0)
    ] = 30.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        described("What is logged; *info* has a line for each request, never its text."),
    ] = "info"
    dialect: Annotated[
        Dialect,
        described(
            "Whose manners win where clients of two servers need opposite things, such as the status of an error; every "
            "protocol is spoken in any case. See docs/migrating.md."
        ),
    ] = "openai"
    fastchat_controller: Annotated[
        bool,
        described(
            "Be a FastChat controller: workers register here, and their models are served too. Old servers send no key, so "
            "everybody who can reach these routes can ask the workers: for trusted networks only."
        ),
    ] = False
    fastchat_workers_from: Annotated[
        list[str],
        described(
            "Networks from which workers may register, and in which they may be, such as `10.0.0.0/8`. Default: this machine "
            "(loopback, and the address that is listened on)."
        ),
    ] = []
    fastchat_token: Annotated[
        str | None,
        described(
            "What a worker from any other network must bring: `http://worker:TOKEN@host:port` as its controller's address. `$NAME` takes it "
            "from the environment."
        ),
    ] = None
    fastchat_dispatch: Annotated[
        Literal["shortest_queue", "lottery"],
        described("How the controller chooses among the workers of a model."),
    ] = "shortest_queue"
    fastchat_register: Annotated[
        str | None,
        described(
            "Register with the FastChat controller at this URL, as a worker for all models; its routes are as open as a controller's."
        ),
    ] = None
    fastchat_worker_address: Annotated[
        str | None,
        described("The URL at which others reach this worker. Default: where it listens."),
    ] = None
    fastchat_worker_concurrency: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        described("Requests that the worker answers at a time; more wait. Default: all."),
    ] = None
    on_unknown_model: Annotated[
        Literal["error", "default"] | None,
        described(
            "A name that no model has is an *error*, 404, or means the *default* model. Default: as the dialect has it."
        ),
    ] = None
    done: Annotated[
        bool | None,
        described(
            "Streams end with `[DONE]`; false for clients that take every line for JSON. Default: as the dialect has it."
        ),
    ] = None
    listeners: Annotated[
        list[ListenerConfig],
        described(
            "Further addresses of the same models: tables with `port`, `host`, `dialect`, `done` and `on_unknown_model`, so that "
            "clients of several servers find each its own."
        ),
    ] = []
    tls_cert: Annotated[
        str | None,
        described(
            "The path of a certificate and its chain (PEM): every address speaks HTTPS, and nothing else."
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        described("The path of the certificate's key (PEM). Default: it is in `tls_cert` too."),
    ] = None
    models: Annotated[
        dict[Annotated[str, Meta(pattern=NAME)], ModelConfig],
        described("The models, by the name that clients send. The first is the default."),
    ] = {}


#: Options that do something only where another is set.
_NEEDS = {
    "allowed_methods": "allowed_origins",
    "allowed_headers": "allowed_origins",
    "allow_credentials": "allowed_origins",
    "fastchat_dispatch": "fastchat_controller",
    "fastchat_token": "fastchat_controller",
    "fastchat_workers_from": "fastchat_controller",
    "fastchat_worker_address": "fastchat_register",
}
_HOST = re.compile(r"[\w.-]+", re.ASCII)


def process_environment() -> Mapping[str, str]:
    """The environment of this process."""
    return os.environ


def set_variables(variables: Mapping[str, str]) -> None:
    """Put variables into the environment of this process, for the engines that it starts."""
    os.environ.update(variables)


def check(config: Config, broken: Container[object] = ()) -> None:
    """
    What no single field can know.

    Args:
        broken: Options that are not as they were meant to be, since something was wrong with them: they contradict nothing.

    Raises:
        ConfigError: Fields contradict each other.
    """
    found = Mistakes()
    if any(not key.strip() or not key.isascii() or " " in key for key in config.api_keys):
        found.add(
            "api_keys: a key is empty, or has blanks or characters beyond ASCII.", ("api_keys",)
        )
    addresses: dict[tuple[str, int], str] = {}
    for number, listener in enumerate(each_listener(config)):
        path = ("listeners", number - 1) if number else ()
        with found:
            _check_address(listener, path, broken)
        where = dotted(path) or "the server's own address"
        address = (listener.host, listener.port)
        if listener.port and addresses.setdefault(address, where) != where:
            found.add(
                f"{dotted((*path, 'port'))}: {listener.host}:{listener.port} is {addresses[address]} already. "
                "Give each address a port of its own.",
                (*path, "port"),
            )
    if config.tls_key is not None and config.tls_cert is None and "tls_cert" not in broken:
        found.add("tls_key: a key needs a certificate; set tls_cert too.", ("tls_key",))
    if config.allow_credentials and "*" in config.allowed_origins:
        found.add(
            "allow_credentials: browsers take no credentials with `*`; name the origins in allowed_origins.",
            ("allow_credentials",),
        )
    for option, needed in _NEEDS.items():
        if _is_set(config, option) and not _is_set(config, needed) and needed not in broken:
            found.add(
                f"{option}: has no effect without {needed}; set that too, or leave this out.",
                (option,),
            )
    with found:
        _check_fastchat(config)
    with found:
        check_names(config)
    found.raise_all()


def _is_set(config: Config, option: str) -> bool:
    return bool(getattr(config, option) != getattr(Config(), option))


def _check_address(config: Config, path: OptionPath, broken: Container[object]) -> None:
    """
    One address can be listened on, as far as its text tells, and is open to none but those who have a key.

    Raises:
        ConfigError: It is not so.
    """
    host, where = config.host, (*path, "host")
    if host and not _HOST.fullmatch(host) and not _is_ipv6(host):
        raise ConfigError(
            f"{dotted(where)}: {shown(host)} is no address. Give an address or a name of this machine, such as "
            "127.0.0.1, without a scheme; the port stands in `port`.",
            where,
        )
    without = not config.api_keys and "api_keys" not in broken
    if without and not config.insecure_no_auth and not is_loopback(host):
        raise ConfigError(
            f"{dotted(where)}: {host} can be reached from other machines, and no key is set. "
            "Set one with --api-key, or allow everybody with --insecure-no-auth.",
            where,
        )


def _is_ipv6(host: str) -> bool:
    try:
        return bool(IPv6Address(host))
    except ValueError:
        return False


def check_names(config: Config) -> None:
    """
    No name is two models', and every fallback is a model.

    Raises:
        ConfigError: It is not so.
    """
    found = Mistakes()
    owners: dict[str, str] = {}
    for name, model in config.models.items():
        for alias in (name, *model.aliases):
            if alias in owners:
                found.add(
                    f"models.{name}: the name `{alias}` belongs to models.{owners[alias]} already. Give each name once.",
                    ("models", name, "aliases"),
                )
            owners.setdefault(alias, name)
    for name, model in config.models.items():
        with found:
            _check_fallback(config, name, model)
    found.raise_all()


def _check_fastchat(config: Config) -> None:
    """
    Who may register with the FastChat controller.

    Raises:
        ConfigError: It is no network, or no token.
    """
    for network in config.fastchat_workers_from:
        try:
            ip_network(network, strict=False)
        except ValueError as error:
            raise ConfigError(
                f"fastchat_workers_from: {network[:50]!r} is no network; write one as 10.0.0.0/8 or 10.0.0.7.",
                ("fastchat_workers_from",),
            ) from error
    token = config.fastchat_token
    if token is not None and not re.fullmatch(r"[!-9;-~]{8,}", token):  # no colon, no blank
        raise ConfigError(
            "fastchat_token: a token has at least 8 characters of ASCII, and no blank or colon.",
            ("fastchat_token",),
        )


def _check_fallback(config: Config, name: str, model: ModelConfig) -> None:
    """
    A fallback is a model, and following fallbacks comes to an end.

    Raises:
        ConfigError: It is not so.
    """
    seen, path = [name], ("models", name, "fallback")
    while model.fallback is not None:
        if model.fallback not in config.models:
            if len(seen) > 1:
                return  # told of the model whose fallback it is
            near = nearest(model.fallback, config.models)
            hint = f"; did you mean `{near}`?" if near else ". Name another model of the file."
            raise ConfigError(
                f"models.{name}.fallback: there is no model `{model.fallback[:100]}`{hint}", path
            )
        if model.fallback in seen:
            if seen[0] != min(seen[seen.index(model.fallback) :]):
                return  # told of another model of the circle
            raise ConfigError(
                f"models.{name}.fallback: {' -> '.join([*seen, model.fallback])} goes in a circle.",
                path,
            )
        seen.append(model.fallback)
        model = config.models[model.fallback]


def each_listener(config: Config) -> list[Config]:
    """The configuration as each listener sees it, the server's own address first."""
    found = [config]
    for listener in config.listeners:
        given = {k: v for k, v in msgspec.structs.asdict(listener).items() if v is not None}
        # a FastChat controller, and a worker, is one place
        alone = {"fastchat_controller": False, "fastchat_register": None}
        found.append(msgspec.structs.replace(config, **given, **alone))
    return found


def is_loopback(host: str) -> bool:
    """True for an address that only this machine can reach."""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host))
