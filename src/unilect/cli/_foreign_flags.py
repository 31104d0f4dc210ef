"""
Foreign words on the command line, with their names here: commands of Ollama, flags of llama-server, vLLM, LocalAI and FastChat.

`config/foreign_names.py` has the options that are called otherwise elsewhere; here is what only a command line has.

Sources: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md; https://docs.vllm.ai/en/latest/cli/serve/;
https://github.com/ollama/ollama/blob/main/docs/cli.mdx; https://localai.io/advanced/#cli-parameters
"""

import os
import re
from collections.abc import Container

from unilect.config.foreign_names import options_meant, parameter_meant, why_absent
from unilect.config.hints import parameters
from unilect.config.limits import Limits
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.values import describe_value

_MODEL = "Name the model without a flag: `unilect serve path/to/model.gguf`."
_HUB = "Name the model without a flag: `unilect serve gguf:org/repo/file.gguf`, or `hf:org/name`."
_NAME = "Name a model in front of its source: `unilect serve NAME=SOURCE`."
_SETUP = (
    "`unilect completion bash` (or zsh, fish) prints what a shell completes commands and flags with: "
    '`eval "$(unilect completion bash)"`.'
)
_PLAIN = re.compile(r"-?\d+(\.\d+)?|true|false")  # what TOML writes without quotes
#: flag of a server -> what to type instead, where there is more to say than the name of an option
_OF_SERVERS: dict[str, str] = {
    **dict.fromkeys(("--model", "-m", "--model-path", "--model-id", "--model-file"), _MODEL),
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "--hf-file", "-hff", "--repo", "-mu", "--model-url"), _HUB),
    **dict.fromkeys(("-a", "--alias", "--served-model-name", "--model-name", "--name"), _NAME),
    **dict.fromkeys(("-c", "--ctx-size", "--n-ctx", "--max-model-len", "--context-length", "--max-seq-len"), "Use --context (tokens per request)."),
    **dict.fromkeys(("-np", "--max-num-seqs", "--n-parallel", "--max-running-requests"), "Use --parallel (concurrent requests)."),
    **dict.fromkeys(("-mm", "--mmproj-url"), "Use --mmproj with a local path."),
    **dict.fromkeys(("--api-keys", "--api-key-file"), "Use --api-key, which may be repeated."),
    **dict.fromkeys(("-v", "--verbose", "--debug", "-vv"), "Use --log-level debug."),
    **dict.fromkeys(("-q", "--quiet", "--silent"), "Use --log-level error."),
    "-p": "Use --port.",
    "--address": "Use --host and --port.",
    "--url": "Name the server without a flag: `unilect serve http://host:8000/v1`.",
}  # fmt: skip
#: flag of a program that measures servers -> the one of `unilect bench`
_OF_BENCH = {
    **dict.fromkeys(("--request-rate", "--qps"), "--rate"),
    **dict.fromkeys(("--max-concurrency", "--parallel", "-c"), "--concurrency"),
    **dict.fromkeys(("--num-prompts", "--request-count", "--max-requests"), "--requests"),
    **dict.fromkeys(("--random-input-len", "--input-len", "--synthetic-input-tokens-mean"), "--prompt-tokens"),
    **dict.fromkeys(("--random-output-len", "--output-len", "--output-tokens-mean"), "--output-tokens"),
    **dict.fromkeys(("--max-seconds", "--duration"), "--seconds"),
    **dict.fromkeys(("--dataset-path", "--input-file", "--data"), "--prompts"),
}  # fmt: skip
#: The same of any command.
_ANYWHERE = {
    **dict.fromkeys(("-f", "--config-file", "--conf"), "Use --config."),
    "-o": "Redirect stdout: `... > FILE`.",
    "-V": "Use `unilect --version`.",
    **dict.fromkeys(("--install-completion", "--show-completion", "--completion"), _SETUP),
}

_SERVE = "Use `unilect serve path/to/model.gguf`."
_STOP = (
    "Stop a running server with Ctrl-C or SIGTERM; an idle model stops by its option `idle_stop_s`."
)
_STATE = "Use `unilect ps` for the models and requests of a running server, or GET /readyz."
_KEYS = "Servers have keys instead of accounts: `unilect keys create NAME`; for gated models of the hub set HF_TOKEN."
_CHAT = "Use `unilect chat SOURCE` to talk to a model, or `unilect serve SOURCE` to serve it; `unilect docs quickstart` shows sources."
#: command -> what to type instead
_COMMANDS: dict[str, str] = {
    **dict.fromkeys(("run", "cli", "generate", "complete", "prompt"), _CHAT),
    **dict.fromkeys(("download", "fetch", "get", "install"), "Use `unilect pull SOURCE` to fetch a model."),
    "ls": "Use `unilect list` for the models on this machine, `unilect models` for those of a configuration or a server.",
    **dict.fromkeys(("remove", "delete", "uninstall"), "Use `unilect rm NAME`; `unilect list` prints the names."),
    **dict.fromkeys(("kill", "down", "quit"), _STOP),
    **dict.fromkeys(("start", "server", "up", "api", "launch-server"), _SERVE),
    **dict.fromkeys(("status", "health", "info", "state"), _STATE),
    "log": "Use `unilect logs` for what engines wrote. The log of `unilect serve` goes to stderr: of a systemd service `journalctl -u unilect`, of a container `docker logs`.",
    "resume": "Use `unilect load MODEL`, which ends a drain.",
    **dict.fromkeys(("embed", "embedding", "embeddings"), "Start a server (`unilect serve SOURCE`), and send texts to POST /v1/embeddings."),
    **dict.fromkeys(("rerank", "reranking"), "Start a server (`unilect serve SOURCE`), and send texts to POST /v1/rerank."),
    **dict.fromkeys(("benchmark", "perf", "profile"), "Use `unilect bench URL` to measure a running server."),
    **dict.fromkeys(("login", "logout", "signin", "signout", "auth"), _KEYS),
    **dict.fromkeys(("key", "token", "user", "users"), "Use `unilect keys`."),
    "version": "Use `unilect --version`.",
    **dict.fromkeys(("check", "validate", "lint"), "Use `unilect config check FILE`."),
    **dict.fromkeys(("init", "setup", "configure"), "A configuration is a TOML file: unilect.example.toml has every option, and `unilect config check FILE` checks one."),
    **dict.fromkeys(("launch", "client", "integrate"), "Use `unilect connect CLIENT` for the lines of a client such as codex or claude."),
    **dict.fromkeys(("push", "cp", "copy", "quantize"), "No model is made here: a model's options are in a configuration file (unilect.example.toml)."),
    **dict.fromkeys(("create", "import", "convert", "migrate"), "`unilect config import FILE` makes a configuration of a Modelfile, or of the file of another server."),
    **dict.fromkeys(("update", "upgrade"), "Use pip, in the folder of the repository: `git pull && pip install .`."),
    **dict.fromkeys(("cluster", "ray", "nodes"), "Use `unilect fleet`."),
    **dict.fromkeys(("restart", "refresh"), "Use `unilect reload` for a changed configuration, or start the server again."),
}  # fmt: skip


def hint_for_flag(flag: str, value: str, own: Container[str]) -> str:
    """
    Return what to type instead of a flag; empty where nothing is known of it.

    Args:
        flag: As it was typed, without its value.
        value: What follows it; empty for nothing.
        own: The flags that the command has.
    """
    name = flag.lstrip("-").replace("-", "_").lower()
    serves = "--context" in own
    if "--concurrency" in own and flag in _OF_BENCH:
        return f"Use {_OF_BENCH[flag]}."
    if "--concurrency" in own and flag in ("--url", "--base-url", "--target"):
        return "Name the server without a flag: `unilect bench http://host:8000/v1`."
    if text := _ANYWHERE.get(flag) or (serves and _OF_SERVERS.get(flag)):
        return text
    if serves and (why := why_absent(name)):
        return f"{why[0].upper()}{why[1:]}."
    for option in [name, *options_meant(name)]:
        same = option == name or option in Limits.__struct_fields__  # in its unit, too
        if hint := _of_option(option, value if same else "", own):
            return hint
    parameter = name if name in parameters() else parameter_meant(name)
    if parameter and serves:
        return (
            f"`{parameter}` is a parameter of requests. A default stands in a configuration file, in the model's table: "
            f"`defaults = {{ {parameter} = {value or '...'} }}`; `unilect serve --config FILE`."
        )
    return ""


def _of_option(option: str, value: str, own: Container[str]) -> str:
    """Return how an option of ours is set on a command line that has these flags; empty where there is no such option."""
    flags = [f"--{option.replace('_', '-')}", f"--{option.replace('_', '-').removesuffix('s')}"]
    if flag := next((one for one in flags if one in own), ""):
        return f"Use {flag}."
    if option in Limits.__struct_fields__ and "--limit" in own:
        return f"Use --limit {option}={value or 'NUMBER'}."
    if "--context" not in own:
        return ""
    of_model = option in ModelConfig.__struct_fields__
    if not of_model and option not in Config.__struct_fields__:
        return ""
    where = "in a model's table [models.NAME]" if of_model else "at the top"
    line = (
        f"{option} = {value if _PLAIN.fullmatch(value) else describe_value(value)}"
        if value
        else option
    )
    return (
        f"It is an option of configuration files: write `{line}` {where}, and start `unilect serve --config FILE` "
        "(docs/configuration.md has every option)."
    )


def hint_for_command(word: str) -> str:
    """Return what to type instead of a command; empty where nothing is known of it."""
    if word in _COMMANDS:
        return _COMMANDS[word]
    if os.path.exists(word) or any(mark in word for mark in (":", "/", ".gguf")):
        return f"To serve a model, use `unilect serve {word}`."
    return ""
