"""The kinds of sources that models have."""

#: kind -> what it is called in messages
KINDS = {
    "gguf": "GGUF models",
    "hf": "transformers models",
    "chatglm": "chatglm.cpp models",
    "openai": "OpenAI-compatible servers",
    "llamacpp": "llama.cpp servers",
    "fastchat": "FastChat controllers",
    "command": "servers by `command`",
    "program": "programs such as vLLM",
    "echo": "`echo:` and backends of plugins",
}
#: Schemes of programs that serve a model, see engines/command/programs.py.
PROGRAMS = ("llama-server", "mlx", "sglang", "transformers-serve", "vllm")
#: scheme -> kind; of a scheme that another package brings, itself
KIND_OF = {
    "chatglm": "chatglm",
    "command": "command",
    "demo": "gguf",
    "echo": "echo",
    "gguf": "gguf",
    "hf": "hf",
    **dict.fromkeys(PROGRAMS, "program"),
    **dict.fromkeys(("http", "https", "openai+http", "openai+https"), "openai"),
    **dict.fromkeys(("fastchat+http", "fastchat+https"), "fastchat"),
    **dict.fromkeys(("llamacpp+http", "llamacpp+https"), "llamacpp"),
}
#: scheme -> what a model of it is, where its files may be fetched: a `gguf` file, or a folder of the hub (`hf`)
FILES = {"gguf": "gguf", "hf": "hf", **dict.fromkeys(PROGRAMS, "hf"), "llama-server": "gguf"}
ENGINES = ("gguf", "hf", "chatglm")
UPSTREAMS = ("openai", "llamacpp", "fastchat")
COMMANDS = ("command", "program")
BATCHED = ("gguf", "hf")


def name_kinds(kinds: tuple[str, ...]) -> str:
    """Return the names of some kinds as a list in words."""
    *others, last = (KINDS[kind] for kind in kinds)
    return f"{', '.join(others)} and {last}" if others else last
