"""
The command lines of the five older servers, word for word, and Ollama's variables: `unilect compat NAME [ARGUMENTS]`.

`FLAGS` has each server's own flags with their defaults, `SERVERS` the function that makes a configuration of them. What unilect does
otherwise than the server did is told in a notice, and what it cannot do is an error: nothing is dropped silently. No address that
other machines reach is opened without a key because an older default says so.

Sources: llama.cpp examples/server/api_like_OAI.py (438c2ca), chatglm.cpp chatglm_cpp/openai_api.py (eff7f44), FastChat
fastchat/serve/openai_api_server.py (0e6d3e4), Chinese-LLaMA-Alpaca scripts/openai_server_demo (91be2d4)
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from unilect.cli import _llama_server as llama_server
from unilect.cli import _ollama_variables as ollama_variables
from unilect.config import load as config_load
from unilect.config import server as configuration
from unilect.config.cors import is_origin
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.engines.transformers.model.folder import has_tokenizer, own_template
from unilect.models import sources
from unilect.models.source_names import name_source
from unilect.templates import chat as templates

Values: TypeAlias = dict[str, Any]


class Flag(Struct, frozen=True):
    """
    A flag of an older server.

    Attributes:
        name: As on the command line.
        default: Its default; False for a switch, None where there is none.
        help: What it is.
        required: It must be given.
    """

    name: str
    default: str | int | bool | None
    help: str
    required: bool = False


class Setup(Struct):
    """
    The result of a command line.

    Attributes:
        config: The configuration.
        notices: What is otherwise than it was.
        variables: What the engines shall find in their environment.
    """

    config: Config
    notices: list[str] = []
    variables: dict[str, str] = {}


class OlderServer(NamedTuple):
    """
    An older server.

    Attributes:
        title: What it is.
        address: Where it listened, unless it was told otherwise; uvicorn, which chatglm.cpp's is often run by, has an address of its own.
        build: Makes options of its flags and of the environment.
    """

    title: str
    address: tuple[str, int]
    build: Callable[[Values, Mapping[str, str], Setup], Values]


#: Every server's own flags, but for `--host` and `--port`; those of `_OURS` are taken beside them.
FLAGS: dict[str, list[Flag]] = {
    "llamacpp": [
        Flag(
            "--chat-prompt",
            "A chat between a curious user and an artificial intelligence assistant. "
            "The assistant follows the given rules no matter what.\\n",
            "system text at the start of every prompt",
        ),
        Flag("--user-name", "\\nUSER: ", "prefix of a user message"),
        Flag("--ai-name", "\\nASSISTANT: ", "prefix of an assistant message"),
        Flag("--system-name", "\\nASSISTANT's RULE: ", "prefix of a system message"),
        Flag("--stop", "</s>", "end of an assistant message"),
        Flag("--llama-api", "http://127.0.0.1:8080", "URL of the llama.cpp or PowerInfer server"),
        Flag("--api-key", "", "API key for clients"),
    ],
    "chatglm": [
        Flag("--workers", 1, "no effect: unilect runs as one concurrent process"),
        Flag("--log-level", "info", "log level"),
        Flag("--ssl-keyfile", None, "TLS private key"),
        Flag("--ssl-certfile", None, "TLS certificate"),
    ],
    "fastchat": [
        Flag("--controller-address", "http://localhost:21001", "URL of the controller"),
        Flag("--allow-credentials", False, "CORS: allow credentials"),
        Flag("--allowed-origins", '["*"]', "CORS: allowed origins, a JSON list"),
        Flag("--allowed-methods", '["*"]', "CORS: allowed methods, a JSON list"),
        Flag("--allowed-headers", '["*"]', "CORS: allowed headers, a JSON list"),
        Flag("--api-keys", None, "API keys for clients, separated by commas"),
        Flag("--ssl", False, "HTTPS, with the files in SSL_KEYFILE and SSL_CERTFILE"),
    ],
    "alpaca": [
        Flag("--base_model", None, "model: a GGUF file, a folder or a name", required=True),
        Flag("--lora_model", None, "LoRA adapter"),
        Flag("--tokenizer_path", None, "tokenizer, if not the adapter's"),
        Flag("--gpus", "0", "GPUs to use, separated by commas"),
        Flag("--load_in_8bit", False, "8-bit weights"),
        Flag("--only_cpu", False, "run on the CPU"),
        Flag("--alpha", "1.0", "RoPE scaling factor: a number, or auto"),
    ],
    "ollama": [Flag("--model", "demo:", "[NAME=]SOURCE of a model; several separated by commas")],
}
_OURS = [
    Flag("--host", None, "address to listen on"),
    Flag("--port", None, "port to listen on; 0 picks a free one"),
    Flag("--insecure-no-auth", False, "listen beyond loopback without a key (unilect's own)"),
    Flag("--api-key", None, "API key for clients (unilect's own)"),
]
_OLLAMA_VARIABLES = ("OLLAMA_HOST", "OLLAMA_ORIGINS", *ollama_variables.NAMES)
_ALIASES = ["gpt-3.5-turbo", "text-davinci-003", "text-embedding-ada-002"]
#: Flags of Alpaca's server for its transformers model, and the values at which each asks for nothing.
_TRANSFORMERS = {"tokenizer_path": (None,), "load_in_8bit": (False,), "alpha": ("1.0", "1")}


def overview() -> str:
    """Return a list of the servers with what they are, and how one is replaced."""
    width = max(map(len, SERVERS))
    lines = [f"  {name:{width}}  {server.title}" for name, server in SERVERS.items()]
    return "\n".join(
        [
            "unilect compat NAME [ARGUMENTS]: serves in the place of one of these, with its command line:",
            *lines,
            "`unilect compat NAME --help` lists its flags; docs/migrating.md says what is otherwise than it was.",
        ]
    )


def flag_names(name: str) -> list[str]:
    """Return the flags that the server of a name has here."""
    own = [flag.name for flag in FLAGS.get(_name_of(name), [])]
    more = llama_server.NAMES if _name_of(name) == "llamacpp" else []
    return list(dict.fromkeys([*more, *own, *(flag.name for flag in _OURS)]))


def setup(name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Setup:
    """
    Return what a command line of another server comes to.

    Args:
        name: `llamacpp`, `chatglm`, `fastchat`, `alpaca` or `ollama`.

    Raises:
        ConfigError: There is no such server, or something cannot be done.
        SystemExit: The arguments are wrong, or ask for help.
    """
    name = _name_of(name)
    if name not in SERVERS:
        raise ConfigError(f"compat: unknown server `{name[:50]}`. Use one of {', '.join(SERVERS)}.")
    if name == "llamacpp" and llama_server.is_meant(arguments):
        values, notices = llama_server.values_of(arguments)
        return Setup(config_load.load(None, values, environment), notices)
    given = vars(_parser(name).parse_args(arguments))
    done = Setup(Config())
    values = SERVERS[name].build(given, environment, done)
    for model in values["models"].values():  # they ignored what they did not know; here it is named
        model["unsupported"] = "report"
    values.setdefault("api_keys", [given["api_key"]] if given.get("api_key") else None)
    if given["insecure_no_auth"]:
        values["insecure_no_auth"] = True
    own = ("127.0.0.1", 8000) if given.get("app") else SERVERS[name].address
    host, port = values.pop("address", own)
    values |= {
        "dialect": name,
        "port": port if given["port"] is None else given["port"],
        "host": given["host"] or _host(name, host, values, environment, done.notices),
    }
    done.config = config_load.load(None, values, environment)
    return done


def _parser(name: str) -> argparse.ArgumentParser:
    more = f"Or llama-server's flags: {', '.join(llama_server.NAMES)}."
    parser = llama_server.Parser(
        prog=f"unilect compat {name}", epilog=more if name == "llamacpp" else None
    )
    if name == "chatglm":
        parser.add_argument("app", nargs="?", help="the uvicorn application")
    own = {flag.name for flag in FLAGS[name]}
    host, port = SERVERS[name].address
    if not configuration.is_loopback(host):
        host = f"127.0.0.1; with --api-key or --insecure-no-auth {host}, as the older server"
    shown = {"--host": host, "--port": port}
    for flag in [*FLAGS[name], *(flag for flag in _OURS if flag.name not in own)]:
        default = shown.get(flag.name, flag.default)
        text = f"{flag.help} [{default}]" if default else flag.help
        options: dict[str, Any] = {"help": text, "default": flag.default}
        if flag.default is False:
            options["action"] = "store_true"
        elif isinstance(flag.default, int) or flag.name == "--port":
            options["type"] = int
        if flag.required:
            options["required"] = True
        parser.add_argument(flag.name, **options)
    return parser


def _name_of(name: str) -> str:
    """Return the name of a server that is also known by its program's."""
    return "llamacpp" if name in ("llama-server", "llama.cpp") else name


def _host(name: str, host: str, values: Values, env: Mapping[str, str], notices: list[str]) -> str:
    """Return the server's own address, unless it would be open to everybody."""
    keys = values.get("api_keys") or env.get("UNILECT_API_KEY") or env.get("UNILECT_API_KEYS")
    if configuration.is_loopback(host) or keys or values.get("insecure_no_auth"):
        return host
    notices.append(
        f"the {name} server listened on {host} without a key; unilect listens on 127.0.0.1. "
        "Set --api-key KEY to listen there with a key, or --insecure-no-auth without."
    )
    return "127.0.0.1"


def _llamacpp(given: Values, env: Mapping[str, str], done: Setup) -> Values:
    url = given["llama_api"]
    if "://" not in url:
        done.notices.append(f"--llama-api: {url} has no scheme; using http://{url}.")
        url = f"http://{url}"
    model = {"source": f"llamacpp+{url.rstrip('/')}", "aliases": _ALIASES, **_turns(given)}
    return {"models": {"LLaMA_CPP": model}}


def _turns(given: Values) -> Values:
    """
    Make a model's `chat_template` and `stop` of the five free-text flags of `api_like_OAI.py`.

    A literal `\\n` is a line break, in the stop word too. The answer also ends where the model would go on as the user.

    Raises:
        ConfigError: A flag holds `{}`, which stands for a turn's text here.
    """
    flags = ("chat_prompt", "user_name", "ai_name", "system_name", "stop")
    parts = [given[flag].replace("\\n", "\n") for flag in flags]
    if any("{}" in part for part in parts):
        raise ConfigError(
            "A flag of the chat template holds `{}`, which has no place there. Take it out."
        )
    preamble, user, ai, system, end = parts
    form = templates.Format(
        preamble=preamble,
        user=f"{user}{{}}",
        assistant=f"{ai}{{}}{end}",
        system=f"{system}{{}}",
        opening=ai.rstrip(),
    )
    words = [word for word in (end, user.rstrip(" ")) if word.strip()]
    return {"chat_template": templates.jinja(form), "stop": words}


def _chatglm(given: Values, env: Mapping[str, str], done: Setup) -> Values:
    model = env.get("MODEL", "chatglm3-ggml.bin")
    threads, context = (_number(env, name) for name in ("NUM_THREADS", "MAX_LENGTH"))
    if given["workers"] != 1:
        done.notices.append("--workers: no effect: unilect runs as one concurrent process.")
    level = {"critical": "error", "trace": "debug"}.get(given["log_level"], given["log_level"])
    settings = {
        "source": _chatglm_source(model),
        "aliases": _ALIASES,
        "threads": threads or None,
        "context": context or None,
        "defaults": {"temperature": 0.95, "top_p": 0.7, "max_tokens": 2048},
    }
    return {
        "models": {"default-model": settings},
        "log_level": level,
        "tls_cert": given["ssl_certfile"],
        "tls_key": given["ssl_keyfile"],
        **_cors(["*"], ["*"], ["*"], False, done.notices),
    }


def _chatglm_source(model: str) -> str:
    """Return the source of a model: one of another engine as it is, anything else as a model of chatglm.cpp."""
    try:
        sources.split(model)
    except ConfigError:
        return f"chatglm:{model}"
    return model


def _fastchat(given: Values, env: Mapping[str, str], done: Setup) -> Values:
    address = given["controller_address"]
    if address == "http://localhost:21001":
        address = env.get("CONTROLLER_ADDRESS", address)
    keys = given["api_keys"].split(",") if given["api_keys"] else _json_list("API_KEYS", env.get("API_KEYS", "[]"))  # fmt: skip
    origins, methods, headers = (
        _json_list(f"--allowed-{what}", given[f"allowed_{what}"])
        for what in ("origins", "methods", "headers")
    )
    model = {
        "source": f"fastchat+{address.rstrip('/')}",
        "model": "*",
        "timeout_s": _number(env, "FASTCHAT_WORKER_API_TIMEOUT") or 100,
        "embedding_batch": _number(env, "FASTCHAT_WORKER_API_EMBEDDING_BATCH_SIZE") or 4,
        "defaults": {"temperature": 0.7, "top_p": 1.0, "top_k": -1},
        "completion_defaults": {"max_tokens": 16},
    }
    values = {
        "models": {"fastchat": model},
        "api_keys": keys or None,
        **_cors(origins, methods, headers, given["allow_credentials"], done.notices),
    }
    if given["api_key"]:
        values["api_keys"] = [*keys, given["api_key"]]
    if given["ssl"]:
        for option, name in (("tls_cert", "SSL_CERTFILE"), ("tls_key", "SSL_KEYFILE")):
            if name not in env:
                raise ConfigError(f"--ssl: the environment variable {name} is not set. Set it.")
            values[option] = env[name]
    return values


def _is_demo(base: str) -> bool:
    return base.partition(":")[0] == sources.DEMO


def _alpaca_templates(base: str, tokenizer: str | None) -> Values:
    """Return Alpaca's formats; a model with a format of its own knows no other, and Alpaca's models have none."""
    if _is_demo(base):
        return {"completion_template": "chatml"}
    own = own_template(Path(tokenizer)) if tokenizer else ""
    own = own or own_template(Path(base.removeprefix("hf:")))
    if own:
        return {"completion_template": own}
    return {"chat_template": "alpaca-zh", "completion_template": "alpaca-completion"}


def _alpaca_tokenizer(given: Values) -> str | None:
    """Return the folder that was named, else the adapter's where it has a tokenizer; None for the model's own."""
    lora = given["lora_model"]
    brought = lora if lora and has_tokenizer(Path(lora)) else None
    chosen: str | None = given["tokenizer_path"] or brought
    return None if chosen == given["base_model"] else chosen


def _alpaca_rope(alpha: str, notices: list[str]) -> Values:
    """Return `rope_scaling` for `--alpha`. `auto` grew with each text, which rows of one batch cannot: it is twice the trained context here."""
    if alpha == "auto":
        notices.append("--alpha auto: RoPE scaling doubles the trained context, for short texts too.")  # fmt: skip
        return {"rope_type": "dynamic", "factor": 2.0}
    try:
        factor = float(alpha)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= 1000:
        raise ConfigError(
            f"--alpha: expected a number from 1 to 1000, or auto; got {alpha[:50]!r}."
        )
    return {"rope_type": "ntk", "factor": factor}


def _alpaca(given: Values, env: Mapping[str, str], done: Setup) -> Values:
    base: str = given["base_model"]
    demo, gguf = _is_demo(base), base.endswith(".gguf") or base.startswith("gguf:")
    tokenizer = None if demo or gguf else _alpaca_tokenizer(given)
    model: Values = {
        "source": base,
        "tokenizer": tokenizer,
        "lora": [given["lora_model"]] if given["lora_model"] else [],
        "aliases": _ALIASES,
        **_alpaca_templates(base, tokenizer),
        "defaults": {"temperature": 0.7, "top_p": 1.0, "top_k": 40, "max_tokens": 128},
        "completion_defaults": {"temperature": 0.1, "top_p": 0.75},
    }
    done.variables["CUDA_VISIBLE_DEVICES"] = "" if given["only_cpu"] else given["gpus"]
    if given["only_cpu"]:
        model |= {"gpu_layers": 0} if gguf or demo else {"device": "cpu"}
    asked = [flag for flag, neutral in _TRANSFORMERS.items() if given[flag] not in neutral]
    if gguf or demo:
        for flag in asked:
            done.notices.append(f"--{flag}: no effect on a GGUF file, which has its own.")
        return {"models": {"chinese-llama-alpaca": model}}
    model["quantize"] = "8bit" if given["load_in_8bit"] else None
    if "alpha" in asked:
        model["rope_scaling"] = _alpaca_rope(given["alpha"], done.notices)
    return {"models": {"chinese-llama-alpaca": model}}


def _ollama(given: Values, env: Mapping[str, str], done: Setup) -> Values:
    models: dict[str, Values] = {}
    for argument in given["model"].split(","):
        name, source = name_source(argument, models)
        models[name] = {"source": source} | ollama_variables.model_options(env, source)
    values: Values = {"models": models}
    if host := env.get("OLLAMA_HOST", ""):
        values["address"] = _ollama_address(host)
    if origins := env.get("OLLAMA_ORIGINS", ""):
        values |= _cors(origins.split(","), ["*"], ["*"], False, done.notices)
    for name in sorted(env):
        if name.startswith("OLLAMA_") and name not in _OLLAMA_VARIABLES and env[name]:
            done.notices.append(f"{name}: no effect; see docs/configuration.md for the options.")
    return values


def _ollama_address(text: str) -> tuple[str, int]:
    """
    Parse host and port of `[http://]HOST[:PORT]`; Ollama's own where one is left out.

    Raises:
        ConfigError: It is no address.
    """
    host, port = SERVERS["ollama"].address
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        return url.hostname or host, port if url.port is None else url.port
    except ValueError as error:
        raise ConfigError(
            f"OLLAMA_HOST: expected HOST:PORT such as 127.0.0.1:11434, got {text[:50]!r}."
        ) from error


def _cors(
    origins: list[str],
    methods: list[str],
    headers: list[str],
    credentials: bool,
    notices: list[str],
) -> Values:
    """Return the options for FastAPI's four; `*` with credentials is not given, since every page could then act for its visitor."""
    if "*" in origins:
        notices.append("CORS allows every origin, as the older server did; set --api-key to require a key.")  # fmt: skip
        if credentials:
            notices.append("--allow-credentials: ignored with the origin `*`; name the origins in --allowed-origins.")  # fmt: skip
    for origin in (one for one in origins if not is_origin(one)):
        notices.append(f"CORS: {origin[:50]!r} is ignored, since it is not the origin of a page, such as https://chat.example.org.")  # fmt: skip
    origins = [one for one in origins if is_origin(one)]
    if not origins:
        return {"allowed_origins": []}
    return {
        "allowed_origins": origins,
        "allowed_methods": [] if "*" in methods else methods,
        "allowed_headers": headers,
        "allow_credentials": credentials and "*" not in origins,
    }


def _json_list(name: str, text: str) -> list[str]:
    try:
        return msgspec.convert(json.loads(text), list[str])
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f'{name}: expected a JSON list of texts, such as ["*"].') from error


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env.get(name, "0"))
    except ValueError as error:
        raise ConfigError(f"{name}: expected a number, got {env[name][:50]!r}.") from error


#: name -> older server
SERVERS = {
    "llamacpp": OlderServer("llama.cpp: llama-server, and the older api_like_OAI.py", ("127.0.0.1", 8081), _llamacpp),
    "chatglm": OlderServer("chatglm.cpp's server", ("0.0.0.0", 8000), _chatglm),
    "fastchat": OlderServer("FastChat's API server", ("localhost", 8000), _fastchat),
    "alpaca": OlderServer("Chinese-LLaMA-Alpaca's server", ("0.0.0.0", 19327), _alpaca),
    "ollama": OlderServer("Ollama, with its variables OLLAMA_HOST ...", ("127.0.0.1", 11434), _ollama),
}  # fmt: skip
