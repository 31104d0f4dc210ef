"""
Configuration: a TOML file, `UNILECT_*` in the environment, and flags; later ones are stronger.

The only reader of the environment. Everything is a frozen Struct; a mistake is one sentence that names the file, the field and
the reason. A field's description is its documentation: docs/configuration.md, `--help` and unilect.example.toml are made from
it or compared with it.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from unilect.errors import ConfigError

NAME = r"^[A-Za-z0-9._:/@+-]{1,128}$"


def described(description: str, **limits: Any) -> Meta:
    """A field's documentation, and its bounds."""
    return Meta(description=description, **limits)


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: the table `[models.NAME]`."""

    source: Annotated[
        str,
        described(
            "Where the model comes from: `demo:`, a path to a .gguf file, `gguf:org/repo/file.gguf`, a folder of "
            "transformers, `hf:org/name`, `http://host/v1`. "
            "See docs/backends."
        ),
    ] = "demo:"
    aliases: Annotated[list[str], described("Other names that clients may send for it.")] = []
    load: Annotated[
        Literal["start", "demand"],
        described("Start the model with the server, or with its first request."),
    ] = "start"
    idle_stop_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        described(
            "Stop the engine after so many seconds without a request; it starts again on demand.",
        ),
    ] = None
    unsupported: Annotated[
        Literal["refuse", "report"],
        described(
            "What happens to a parameter that the backend does not honour: *refuse* the request with 400, or answer "
            "without it and *report* it in the header `X-Unilect-Ignored`."
        ),
    ] = "refuse"
    defaults: Annotated[
        dict[str, Any],
        described("Values for parameters that a request leaves out, such as `temperature`."),
    ] = {}
    # engines
    context: Annotated[
        Annotated[int, Meta(ge=16, le=10_000_000)] | None,
        described(
            "Tokens of prompt and answer together, for each request; llama.cpp rounds up to 256. Default: the model's own, at most 8192.",
        ),
    ] = None
    parallel: Annotated[
        int,
        described(
            "Requests that are answered at the same time; each has the whole `context`, and memory for it. More wait.",
            ge=1,
            le=256,
        ),
    ] = 4
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        described(
            "Processor threads. Default: one less than there are cores, shared out among the engines of this server; as "
            "many as cores collapses as soon as anything else runs.",
        ),
    ] = None
    gpu_layers: Annotated[
        Annotated[int, Meta(ge=-1, le=10_000)] | None,
        described(
            "Layers on the GPU; -1 for all. Default: all where llama.cpp has a GPU.",
        ),
    ] = None
    batch: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        described(
            "Prompt tokens read in one step. Default 64 on a CPU, so that a prompt can be given up midway; 2048 on a GPU.",
        ),
    ] = None
    lora: Annotated[
        list[str],
        described(
            "LoRA adapters (GGUF files, or folders of peft), all applied; `path=0.5` sets the scale. Models with the same "
            "folder and other adapters share one base.",
        ),
    ] = []
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        described(
            "Type of the weights of a transformers model; *auto* is float32 on a processor and bfloat16 on a GPU."
        ),
    ] = "auto"
    device: Annotated[
        str,
        described(
            "Where a transformers model runs: `auto`, `cpu`, `cuda:0`.",
            pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$",
        ),
    ] = "auto"
    quantize: Annotated[
        Literal["8bit", "4bit"] | None,
        described(
            "Weights of a transformers model in fewer bits; all but 8 bits on a processor need bitsandbytes.",
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, described("Run the Python code that a transformers model brings with it.")
    ] = False
    allow_pickle: Annotated[
        bool,
        described("Load weights that are pickles, which can run code, where there are no others."),
    ] = False
    mmproj: Annotated[
        str | None, described("The projector (GGUF) of a model that sees images.")
    ] = None
    chat_template: Annotated[
        str | None,
        described("A Jinja template, or the path of one, instead of the model's own."),
    ] = None
    cache_type_k: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
        described("Type of the keys in the KV cache."),
    ] = "f16"
    cache_type_v: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
        described("Type of the values in the KV cache."),
    ] = "f16"
    pooling: Annotated[
        Literal["mean", "cls", "last"] | None,
        described("How embeddings are pooled. Default: the model's own way, else the mean."),
    ] = None
    start_timeout_s: Annotated[
        float, described("The longest time that loading may take.", gt=0)
    ] = 600.0
    hang_timeout_s: Annotated[
        float,
        described(
            "An engine that answers nothing for so long while requests run is killed and started again.",
            gt=0,
        ),
    ] = 60.0
    # upstreams
    model: Annotated[
        str | None,
        described(
            "The model's name on the upstream. Default: this table's name where it has such a model, else its only model."
        ),
    ] = None
    api_key: Annotated[
        str | None,
        described("The upstream's key; `$NAME` takes it from the environment."),
    ] = None
    api_key_header: Annotated[
        str, described("The header that carries it; `Authorization` gets `Bearer` before it.")
    ] = "Authorization"
    timeout_s: Annotated[
        float, described("The longest silence of an upstream, before and within an answer.", gt=0)
    ] = 300.0
    reuse_connections: Annotated[
        bool,
        described(
            "Keep connections to the upstream open. Off, because an upstream that sends one answer too many would give it to "
            "the next caller."
        ),
    ] = False


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
            "`$NAME` takes a key from the environment."
        ),
    ] = []
    insecure_no_auth: Annotated[
        bool, described("Listen beyond loopback without keys, for everybody who can reach it.")
    ] = False
    allowed_hosts: Annotated[
        list[str],
        described(
            "Host names that requests may name, beside those it listens on; `*` for any. On loopback this keeps a web page "
            "that resolves to it (DNS rebinding) out."
        ),
    ] = []
    allowed_origins: Annotated[
        list[str],
        described(
            "Web origins whose pages may call this server (CORS); `*` for any, without credentials."
        ),
    ] = []
    max_body_bytes: Annotated[
        int, described("The longest request body that is read.", ge=1024, le=2**31)
    ] = 16 * 1024 * 1024
    shutdown_grace_s: Annotated[
        float, described("How long running answers may go on after SIGTERM.", ge=0)
    ] = 30.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        described("What is logged; *info* has a line for each request, never its text."),
    ] = "info"
    dialect: Annotated[
        Literal["openai", "llamacpp", "chatglm", "fastchat", "alpaca"],
        described(
            "Whose manners win where clients of two servers need opposite things, such as the status of an error; every "
            "protocol is spoken in any case. See docs/migrating.md."
        ),
    ] = "openai"
    models: Annotated[
        dict[Annotated[str, Meta(pattern=NAME)], ModelConfig],
        described("The models, by the name that clients send. The first is the default."),
    ] = {}


def load(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """
    The configuration.

    Args:
        path: The TOML file; `UNILECT_CONFIG` names it where this is None.
        flags: What the command line sets; None values are not set.
        environment: Instead of the process's environment.

    Raises:
        ConfigError: Anything is wrong; the message names the place, the field and the reason.
    """
    env = os.environ if environment is None else environment
    if path is None and env.get("UNILECT_CONFIG"):
        path = Path(env["UNILECT_CONFIG"])
    values = _from_file(path) if path is not None else {}
    values |= _from_environment(env)
    values |= {name: value for name, value in (flags or {}).items() if value is not None}
    values = _with_secrets(values, env)
    where = str(path) if path is not None else "configuration"
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {sentence(str(error))}") from error
    check(config)
    return config


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = msgspec.toml.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}.") from error
    return dict(values)


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """`UNILECT_PORT=9000` and so on, for every field but `models`; lists are separated by commas."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Config):
        text = env.get(f"UNILECT_{field.name.upper()}")
        if text is None or field.name == "models":
            continue
        raw: Any = text
        if isinstance(field.default_factory, type) and issubclass(field.default_factory, list):
            raw = [part.strip() for part in text.split(",") if part.strip()]
        try:
            values[field.name] = msgspec.convert(raw, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"UNILECT_{field.name.upper()}: {error}.") from error
    return values


def _with_secrets(values: dict[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """`$NAME` in a key's place is taken from the environment, so that files need hold no secret."""

    def secret(text: Any, where: str) -> Any:
        if not isinstance(text, str) or not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", text):
            return text
        if text[1:] not in env:
            raise ConfigError(f"{where}: the environment has no variable {text[1:]}.")
        return env[text[1:]]

    values = dict(values)
    if isinstance(values.get("api_keys"), list):
        values["api_keys"] = [secret(key, "api_keys") for key in values["api_keys"]]
    if isinstance(values.get("models"), dict):
        values["models"] = {
            name: model | {"api_key": secret(model["api_key"], f"models.{name}.api_key")}
            if isinstance(model, dict) and "api_key" in model
            else model
            for name, model in values["models"].items()
        }
    return values


def check(config: Config) -> None:
    """
    What no single field can know.

    Raises:
        ConfigError: Fields contradict each other.
    """
    if any(not key.strip() or not key.isascii() or " " in key for key in config.api_keys):
        raise ConfigError("api_keys: a key is empty, or has blanks or characters beyond ASCII.")
    if not config.api_keys and not config.insecure_no_auth and not is_loopback(config.host):
        raise ConfigError(
            f"host: {config.host} can be reached from other machines, and no key is set. "
            "Set one with --api-key, or allow everybody with --insecure-no-auth."
        )
    owners: dict[str, str] = {}
    for name, model in config.models.items():
        for alias in (name, *model.aliases):
            if alias in owners:
                raise ConfigError(
                    f"models.{name}: the name `{alias}` belongs to models.{owners[alias]} already."
                )
            owners[alias] = name


def is_loopback(host: str) -> bool:
    """True for an address that only this machine can reach."""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host))


def sentence(message: str) -> str:
    """msgspec's message with the field first: `port: Expected ...`."""
    what, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    return f"{path}: {what}." if path else f"{what}."
