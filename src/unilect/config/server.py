"""
The settings of the server, and what they must not contradict.

The only reader of the environment; `load` makes settings of it.
"""

import os
import re
from collections.abc import Container, Mapping
from ipaddress import IPv6Address
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from unilect.config import cors, fastchat, paths
from unilect.config.admin import AdminConfig, check_admin
from unilect.config.digests import hash_keys
from unilect.config.fleet import FleetConfig, head_of
from unilect.config.limits import Limits, LimitsConfig, check_budgets
from unilect.config.mistakes import ErrorCollector, OptionError, OptionPath, join_path
from unilect.config.model import NAME, ModelConfig
from unilect.config.names import check_names
from unilect.config.option import Flag, Table, check_table, option
from unilect.config.otel import OtelConfig
from unilect.config.page import PageConfig
from unilect.config.sizes import wrong_size
from unilect.config.store import StoreConfig, may_have_keys
from unilect.config.values import describe_value

Dialect: TypeAlias = Literal["openai", "llamacpp", "chatglm", "fastchat", "alpaca", "ollama"]


class ListenerConfig(Table, frozen=True, kw_only=True):
    """A further address, a table of `[[listeners]]`; what it leaves out is as in `Config`."""

    port: Annotated[int, Meta(ge=0, le=65535)]
    host: str = "127.0.0.1"
    dialect: Dialect | None = None
    done: bool | None = None
    on_unknown_model: Literal["error", "default"] | None = None


class Config(Table, frozen=True, kw_only=True):
    """The whole server."""

    host: str = option(
        "127.0.0.1",
        "Address to listen on.",
        flag=Flag("--host", "Address to listen on [127.0.0.1]."),
    )
    port: Annotated[int, Meta(ge=0, le=65535)] = option(
        8000,
        "Port to listen on; 0 picks a free port.",
        flag=Flag("--port", "Port [8000]; 0 picks a free one."),
    )
    api_keys: list[str] = option(
        [],
        "API keys. Clients send one as `Authorization: Bearer KEY`. Required on every address that is not loopback. `$NAME` "
        "takes a key from the environment; `sha256:DIGITS` stands for a key that the file does not hold (`unilect keys digest` "
        "prints it). `unilect chat` and `unilect models` read `UNILECT_API_KEY` too.",
        live=True,
        secret="key",
        flag=Flag("--api-key", "API key for clients; may be repeated."),
        example=["$UNILECT_API_KEY"],
    )
    metrics_keys: list[str] = option(
        [],
        "Keys that may read `/metrics`, and nothing else, written as those of `api_keys`; none may be in `api_keys` or `[admin]`. "
        "Where clients need a key, `/metrics` needs one of these or of the admin API; clients' keys cannot read it.",
        live=True,
        secret="key",
    )
    insecure_no_auth: bool = option(
        False,
        "Listen on addresses that are not loopback without API keys: everyone who can reach the port can use the server.",
        live=True,
        flag=Flag("--insecure-no-auth", "Listen beyond loopback without keys."),
    )
    allowed_hosts: list[str] = option(
        [],
        "Values of the `Host` header to accept, in addition to the addresses listened on, with any port; `*` accepts any. This "
        "check prevents DNS rebinding. A server that listens on all interfaces accepts any host if API keys are set; without keys it accepts "
        "IP addresses, its own host name, and names without a dot or in `.local`, `.lan`, `.internal` or `.home.arpa`.",
        live=True,
        example=["models.lan"],
    )
    image_hosts: list[
        Annotated[str, Meta(pattern=r"^(\*\.)?[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?$")]
    ] = option(
        [],
        "Hosts from which images are fetched that a message names by an http(s) URL, for GGUF models, llama.cpp's native protocol "
        "and FastChat's workers; servers with OpenAI's API get the URL. `*.example.org` allows all names below it, `name:8080` "
        "another port. Addresses that are not public are never connected to. Default: none are fetched.",
        live=True,
    )
    allowed_origins: list[str] = option(
        [],
        "CORS: origins whose pages may call this server, such as `https://chat.example.org`; `*` allows any, without credentials.",
        live=True,
        check=cors.check_origin,
        example=["http://localhost:3000"],
    )
    allow_credentials: bool = option(
        False,
        "CORS: allow cookies and other credentials from `allowed_origins`. Not allowed with `*`.",
        live=True,
        needs="allowed_origins",
    )
    allowed_methods: list[str] = option(
        [],
        "CORS: allowed methods. Default: GET, HEAD, POST, DELETE and OPTIONS.",
        live=True,
        needs="allowed_origins",
        check=cors.check_method,
        example=["POST", "OPTIONS"],
    )
    allowed_headers: list[str] = option(
        [],
        "CORS: allowed request headers, in addition to those of OpenAI's and Anthropic's clients; `*` allows any.",
        live=True,
        needs="allowed_origins",
        check=cors.check_header,
        example=["X-Team"],
    )
    max_body_bytes: Annotated[int, Meta(ge=1024, le=2**31)] = option(
        16 * 1024 * 1024, "Maximum size of a request body.", live=True
    )
    max_connections: Annotated[int, Meta(ge=1)] | None = option(
        None,
        "Maximum number of connections. At the limit, a new connection closes the one that has been idle longest, never one "
        "with a running request. Default: from the open-file limit of the process (`ulimit -Hn`).",
        live=True,
        example=2000,
    )
    max_connections_per_address: Annotated[int, Meta(ge=1)] | None = option(
        None,
        "Maximum number of connections per client address; loopback is exempt. Default: unlimited, because many clients may "
        "share a proxy.",
        live=True,
        example=100,
    )
    max_total_body_bytes: Annotated[int, Meta(ge=0)] = option(
        256 * 1024 * 1024,
        "Maximum size of all large request bodies together (of each what is beyond 64 KiB) while they are read, wait or are answered; "
        "one API key has at most half of it. Beyond it a request is refused: 429 or 503. The memory that they take is about "
        "twice as much. Two bodies of `max_body_bytes` always fit. See docs/queue.md.",
        live=True,
    )
    shutdown_grace_s: Annotated[float, Meta(ge=0)] = option(
        30.0, "Grace period for running requests after SIGTERM.", live=True
    )
    rejoin_s: Annotated[float, Meta(ge=0, le=600)] = option(
        0.0,
        "Seconds for which an answer goes on after its client has disconnected: the same request of the same API key gets it. "
        "Default: off, a disconnect stops generation at once. See docs/rejoin.md.",
    )
    memory: str | None = option(
        None,
        "Memory for the models that this server runs, all together, such as `24GiB`: what does not fit beside the others is exchanged for "
        "idle models when it is asked for. Default: what is free at start, but for a reserve. See docs/memory.md.",
        flag=Flag("--memory", "Memory for all models, such as 24GiB."),
        check=wrong_size,
        example="24GiB",
    )
    swap_wait_s: Annotated[float, Meta(ge=0, le=3600)] = option(
        5.0,
        "Shortest time that a model stays in memory while it is asked for and another one waits for its memory; at least four times the "
        "seconds that loading it took.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info",
        "Log level. *info* logs one line per request, without prompts and answers.",
        live=True,
        flag=Flag("--log-level", "debug, info, warning or error [info]."),
    )
    watch: bool = option(
        False,
        "Reload the configuration file when it changes; it is looked at every second. A file that cannot be used changes "
        "nothing, and the log says why. See docs/operation.md.",
    )
    log_format: Literal["console", "json"] = option(
        "console",
        "Format of the log on stderr: text, or one JSON object a line (docs/monitoring.md has its fields).",
    )
    metrics_per_key: bool = option(
        False,
        "Count requests and tokens for each API key in /metrics, of up to 1,000 keys; the others are counted as *other*.",
    )
    dialect: Dialect = option(
        "openai",
        "Compatibility profile, for clients of different servers that expect conflicting behaviour, such as the status of an "
        "error. Every profile serves every protocol. See docs/migrating.md.",
    )
    fastchat_controller: bool = option(
        False,
        "Act as a FastChat controller: workers register with this server, which serves their models too. FastChat's protocol "
        "has no keys: everyone who can reach these routes can use the workers. For trusted networks only.",
        example=True,
    )
    fastchat_workers_from: list[str] = option(
        [],
        "Networks from which workers may register, and in which their addresses must be, such as `10.0.0.0/8`. Default: this "
        "machine (loopback and the address listened on).",
        needs="fastchat_controller",
        check=fastchat.check_network,
    )
    fastchat_token: str | None = option(
        None,
        "Token for workers outside `fastchat_workers_from`. A worker sends it in its controller address: "
        "`http://worker:TOKEN@host:port`. `$NAME` takes it from the environment.",
        needs="fastchat_controller",
        secret="key",
        check=fastchat.check_token,
        example="a-secret-of-8-characters-or-more",
    )
    fastchat_dispatch: Literal["shortest_queue", "lottery"] = option(
        "shortest_queue",
        "How the controller selects a worker: by the shortest queue, or at random, weighted by speed (*lottery*).",
        needs="fastchat_controller",
    )
    fastchat_register: str | None = option(
        None,
        "Register with the FastChat controller at this URL, as a worker for all models. The worker's routes need no key either.",
        flag=Flag("--fastchat-controller", "FastChat controller to register with.", "URL"),
        example="http://controller:21001",
    )
    fastchat_worker_address: str | None = option(
        None,
        "URL at which the controller reaches this worker. Default: the address listened on.",
        needs="fastchat_register",
        flag=Flag("--worker-address", "URL at which the controller reaches this worker.", "URL"),
        example="http://10.0.0.2:21002",
    )
    fastchat_worker_concurrency: Annotated[int, Meta(ge=1, le=65536)] | None = option(
        None,
        "Maximum number of concurrent requests to the worker; further requests are queued. Default: unlimited.",
        needs="fastchat_register",
        flag=Flag("--limit-worker-concurrency", "Concurrent requests from the controller."),
        example=8,
    )
    on_unknown_model: Literal["error", "default"] | None = option(
        None,
        "How requests for an unknown model are answered: with a 404 *error*, or by the *default* model. Default: set by the "
        "dialect.",
        example="default",
    )
    done: bool | None = option(
        None,
        "End streams with `[DONE]`; false for clients that parse every line as JSON. Default: set by the dialect.",
        example=False,
    )
    listeners: list[ListenerConfig] = option(
        [],
        "Additional addresses for the same models: tables with `port`, `host`, `dialect`, `done` and `on_unknown_model`.",
        example=[{"port": 8081, "dialect": "llamacpp"}],
    )
    tls_cert: str | None = option(
        None,
        "TLS certificate chain (a PEM file). Every address then serves HTTPS only.",
        path=paths.plain,
        example="cert.pem",
    )
    tls_key: str | None = option(
        None,
        "TLS private key (a PEM file). Default: the key in `tls_cert`.",
        needs="tls_cert",
        path=paths.plain,
        example="key.pem",
    )
    store: StoreConfig = option(
        StoreConfig(), "What is kept beyond a request: the table `[store]`, see below."
    )
    limits: LimitsConfig = option(
        LimitsConfig(),
        "Limits of every API key that has no such limit of its own, and where is counted: the table `[limits]`, see below.",
    )
    owners: dict[Annotated[str, Meta(min_length=1, max_length=100)], Limits] = option(
        {},
        "Limits of all keys of an owner together, by the owner's name: the tables `[owners.NAME]`, with the limits of `[limits]`.",
        live=True,
    )
    admin: AdminConfig = option(
        AdminConfig(), "The admin API, on its own address: the table `[admin]`, see below."
    )
    page: PageConfig = option(
        PageConfig(),
        "The page that a browser gets at `/`: the table `[page]`; `page = false` turns it off.",
    )
    otel: OtelConfig = option(
        OtelConfig(), "Traces for OpenTelemetry: the table `[otel]`, see below."
    )
    fleet: FleetConfig = option(
        FleetConfig(), "The cluster of models with `replicas`: the table `[fleet]`."
    )
    models: dict[Annotated[str, Meta(pattern=NAME)], ModelConfig] = option(
        {}, "Models by name. The first is the default model.", live=True
    )


_HOST = re.compile(r"[\w.-]+", re.ASCII)


def process_environment() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ


def set_variables(variables: Mapping[str, str]) -> None:
    """Put variables into the environment of this process, for the engines that it starts."""
    os.environ.update(variables)


def check(config: Config, broken: Container[object] = ()) -> None:
    """
    Check what no single option can know.

    Args:
        broken: Options that are not as they were meant to be, since something was wrong with them: they contradict nothing.

    Raises:
        ConfigError: Fields contradict each other.
    """
    found = ErrorCollector()
    _check_metrics_keys(config, found)
    addresses: dict[tuple[str, int], str] = {}
    for number, listener in enumerate(each_listener(config)):
        path = ("listeners", number - 1) if number else ()
        with found:
            _check_address(listener, path, broken)
        where = join_path(path) or "the server's own address"
        address = (listener.host, listener.port)
        if listener.port and addresses.setdefault(address, where) != where:
            found.at(
                (*path, "port"),
                f"{listener.host}:{listener.port} is in use by {addresses[address]}. "
                "Give each listener its own port.",
            )
    check_table(config, (), found, broken)
    if config.allow_credentials and "*" in config.allowed_origins:
        found.at(
            ("allow_credentials",),
            "browsers reject credentials with `*`; name the origins in allowed_origins.",
        )
    _check_budgets(config, broken, found)
    if "admin" not in broken:
        with found:
            check_admin(config.admin, config.api_keys, addresses)
    if "fleet" not in broken:
        with found:
            head_of(config.fleet)
    with found:
        check_names(config.models)
    found.raise_all()


def _check_address(config: Config, path: OptionPath, broken: Container[object]) -> None:
    """
    Check that one address can be listened on, as far as its text tells, and is open to none but those who have a key.

    Raises:
        ConfigError: It is not so.
    """
    host, where = config.host, (*path, "host")
    if host and not _HOST.fullmatch(host) and not _is_ipv6(host):
        raise OptionError(
            where,
            f"{describe_value(host)} is not an address. Give an IP address or host name of this machine, such as "
            "127.0.0.1, without a scheme; set the port in `port`.",
        )
    if "api_keys" not in broken and not may_have_keys(config.store, process_environment()):
        check_keys(config, False, path)


def check_keys(config: Config, of_store: bool, path: OptionPath = ()) -> None:
    """
    Check that an address that other machines reach is open to none but those who have a key.

    Args:
        of_store: The store has keys.

    Raises:
        ConfigError: It is not so.
    """
    without = not config.api_keys and not of_store
    if without and not config.insecure_no_auth and not is_loopback(config.host):
        raise OptionError(
            (*path, "host"),
            f"{config.host} can be reached from other machines, but no API key is set. Make one with "
            "`unilect keys create`, set one with --api-key, or allow access without a key with --insecure-no-auth.",
        )


def _is_ipv6(host: str) -> bool:
    try:
        return bool(IPv6Address(host))
    except ValueError:
        return False


def _check_metrics_keys(config: Config, found: ErrorCollector) -> None:
    """Note keys for the metrics that open something else."""
    keys, path = config.metrics_keys, ("metrics_keys",)
    for name, others in (("api_keys", config.api_keys), ("[admin]", config.admin.api_keys)):
        if set(hash_keys(keys)) & set(hash_keys(others)):
            found.at(path, f"one of them is a key of {name}, too. Choose another key for the metrics.")  # fmt: skip


def _check_budgets(config: Config, broken: Container[object], found: ErrorCollector) -> None:
    """Note budgets that would not hold."""
    if any(name in broken for name in ("limits", "owners", "models", "store")):
        return
    kept = config.store.ledger != "off"
    prices = any(model.price is not None for model in config.models.values())
    check_budgets(("limits",), config.limits, prices, kept, found)
    for name, owner in config.owners.items():
        check_budgets(("owners", name), owner, prices, kept, found)
    for name, one in config.models.items():
        check_budgets(("models", name, "limits"), one.limits, one.price is not None, kept, found)


def each_listener(config: Config) -> list[Config]:
    """Return the configuration as each listener sees it, the server's own address first."""
    found = [config]
    for listener in config.listeners:
        given = {k: v for k, v in msgspec.structs.asdict(listener).items() if v is not None}
        # a FastChat controller, and a worker, is one place
        alone = {"fastchat_controller": False, "fastchat_register": None}
        found.append(msgspec.structs.replace(config, **given, **alone))
    return found


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine can reach."""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host))
