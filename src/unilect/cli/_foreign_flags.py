"""
What users of other servers type, and what it is called here: commands of Ollama, flags of llama-server, vLLM and FastChat.

Sources: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md; https://docs.vllm.ai/en/latest/cli/serve/;
https://github.com/ollama/ollama/blob/main/docs/cli.mdx
"""

import os

_MODEL = "Name the model without a flag: `unilect serve path/to/model.gguf`."
_CONFIGURED = "Set it in a configuration file, in the model's table; docs/configuration.md has every option: `unilect serve --config FILE`."

#: flag -> what to type instead
FLAGS: dict[str, str] = {
    **dict.fromkeys(("--model", "-m", "--model-path", "--model-id"), _MODEL),
    **dict.fromkeys(
        ("-hf", "-hfr", "--hf-repo", "--hf-file", "-hff", "--repo"),
        "Name the model without a flag: `unilect serve gguf:org/repo/file.gguf`, or `hf:org/name`.",
    ),
    **dict.fromkeys(
        ("-c", "--ctx-size", "--n-ctx", "--max-model-len", "--context-length", "--max-seq-len"),
        "Use --context (tokens per request).",
    ),
    **dict.fromkeys(
        ("-np", "--max-num-seqs", "--n-parallel", "--max-running-requests"),
        "Use --parallel (concurrent requests).",
    ),
    **dict.fromkeys(("-ngl", "--n-gpu-layers"), "Use --gpu-layers."),
    **dict.fromkeys(("-t", "--n-threads"), "Use --threads."),
    **dict.fromkeys(
        ("-a", "--alias", "--served-model-name", "--model-name"),
        "Name a model in front of its source: `unilect serve NAME=SOURCE`.",
    ),
    **dict.fromkeys(("--jinja", "--chat-template-file"), "Use --chat-template, which takes a path too."),
    **dict.fromkeys(("-mm", "--mmproj-url"), "Use --mmproj with a local path."),
    **dict.fromkeys(("--api-keys", "--api-key-file"), "Use --api-key, which may be repeated."),
    **dict.fromkeys(("-p",), "Use --port."),
    **dict.fromkeys(("--ssl-certfile", "--ssl-keyfile", "--ssl-cert-file", "--ssl-key-file"), "Set `tls_cert` and `tls_key` in a configuration file: `unilect serve --config FILE`."),
    **dict.fromkeys(("-b", "--batch-size", "-ub", "--ubatch-size"), f"The option is `batch`. {_CONFIGURED}"),
    **dict.fromkeys(("-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "--kv-cache-dtype"), f"The options are `cache_type_k` and `cache_type_v`. {_CONFIGURED}"),
    **dict.fromkeys(("--device", "--tensor-parallel-size", "-tp", "--gpus", "--num-gpus"), f"The option is `device`. {_CONFIGURED}"),
    **dict.fromkeys(("--dtype", "--quantization", "--load-8bit", "--load-4bit"), f"The options are `dtype` and `quantize`. {_CONFIGURED}"),
    "--trust-remote-code": f"The option is `trust_remote_code`. {_CONFIGURED}",
}  # fmt: skip

_KEPT = "unilect has no model list of its own: `unilect models` lists those of a configuration, `unilect models --url URL` those of a running server."
_NO_PULL = (
    "unilect downloads a model when it first serves it: `unilect serve gguf:org/repo/file.gguf`."
)
_SERVE = "Use `unilect serve path/to/model.gguf`."
_STOP = "Stop a running server with Ctrl-C or SIGTERM."
#: command -> what to type instead
COMMANDS: dict[str, str] = {
    "run": "Use `unilect chat SOURCE` to talk to a model, or `unilect serve SOURCE` to serve it; docs/quickstart.md shows sources.",
    "pull": _NO_PULL,
    "download": _NO_PULL,
    "list": _KEPT,
    "ls": _KEPT,
    "show": "`GET /v1/models/{model}` of a running server shows what a model supports.",
    "rm": "Models of the Hugging Face hub are in its own cache: `hf cache ls` and `hf cache rm` manage it.",
    "stop": _STOP,
    "kill": _STOP,
    "start": _SERVE,
    "server": _SERVE,
    "help": "Use `unilect --help`, or `unilect COMMAND --help`.",
    "version": "Use `unilect --version`.",
    "check": "Use `unilect config check FILE`.",
    "launch": "Use `unilect connect CLIENT` for the lines of a client such as codex or claude.",
    "create": "There is no Modelfile: a model's options are in a configuration file (unilect.example.toml).",
}


def of_flag(flag: str) -> str:
    """What to type instead of a flag, with or without its value; empty where nothing is known of it."""
    return FLAGS.get(flag.partition("=")[0], "")


def of_command(word: str) -> str:
    """What to type instead of a command; empty where nothing is known of it."""
    if word in COMMANDS:
        return COMMANDS[word]
    if os.path.exists(word) or any(mark in word for mark in (":", "/", ".gguf")):
        return f"To serve a model, use `unilect serve {word}`."
    return ""
