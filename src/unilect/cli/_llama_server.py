"""
llama-server's command line as a configuration: `unilect compat llamacpp -m model.gguf -ngl 99 -c 8192`.

`_FLAGS` has the flags that have an effect here, `_WITHOUT` those that ask for nothing that is not here anyway; the latter are told in a
notice. What cannot be done is an error.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from unilect.config.foreign_names import why_absent
from unilect.config.model import name_from
from unilect.core.errors import ConfigError
from unilect.core.file_errors import unreadable
from unilect.models.source_names import name_source

PORT = 8080
_NUMBER = re.compile(r"-\.?\d")
_DRAFTS = ("none", "draft", "draft-simple")  # kinds of speculation that `-md` alone decides about
_MANY = 99  # layers, which no model has by which people mean all of them
#: option of a model -> type, flags
_OPTIONS: dict[str, tuple[type, str]] = {
    "threads": (int, "-t --threads"),
    "batch": (int, "-b --batch-size"),
    "cache_type_k": (str, "-ctk --cache-type-k"),
    "cache_type_v": (str, "-ctv --cache-type-v"),
    "cache_ram_mib": (int, "-cram --cache-ram"),
    "slot_save_path": (str, "--slot-save-path"),
    "mmproj": (str, "-mm --mmproj"),
    "speculative": (str, "-md --model-draft --spec-draft-model"),
    "draft_max": (int, "--draft --draft-n --draft-max --spec-draft-n-max"),
    "main_gpu": (int, "-mg --main-gpu"),
    "split_mode": (str, "-sm --split-mode"),
}
#: parameter of requests -> type, flags
_PARAMETERS: dict[str, tuple[type, str]] = {
    "temperature": (float, "--temp --temperature"),
    "top_k": (int, "--top-k"),
    "top_p": (float, "--top-p"),
    "min_p": (float, "--min-p"),
    "seed": (int, "-s --seed"),
    "max_tokens": (int, "-n --predict --n-predict"),
    "repeat_penalty": (float, "--repeat-penalty"),
    "presence_penalty": (float, "--presence-penalty"),
    "frequency_penalty": (float, "--frequency-penalty"),
    "thinking_budget_tokens": (int, "--reasoning-budget"),
}
#: destination of any flag with a value -> type, flags
_FLAGS: dict[str, tuple[type, str]] = {
    "model": (str, "-m --model"),
    "model_url": (str, "-mu --model-url"),
    "hf_repo": (str, "-hf -hfr --hf-repo"),
    "hf_file": (str, "-hff --hf-file"),
    "alias": (str, "-a --alias"),
    "host": (str, "--host"),
    "port": (int, "--port"),
    "api_key": (str, "--api-key"),
    "api_key_file": (str, "--api-key-file"),
    "tls_cert": (str, "--ssl-cert-file"),
    "tls_key": (str, "--ssl-key-file"),
    "context": (int, "-c --ctx-size"),
    "parallel": (int, "-np --parallel"),
    "gpu_layers": (str, "-ngl --gpu-layers --n-gpu-layers"),
    **_OPTIONS,
    "pooling": (str, "--pooling"),
    "chat_template": (str, "--chat-template"),
    "chat_template_file": (str, "--chat-template-file"),
    "chat_template_kwargs": (str, "--chat-template-kwargs"),
    "sleep": (int, "--sleep-idle-seconds"),
    "spec_type": (str, "--spec-type"),
    "tensor_split": (str, "-ts --tensor-split"),
    **_PARAMETERS,
}
_SWITCHES = {
    "context_shift": "--context-shift",
    "kv_unified": "--kv-unified -kvu",
    "rerank": "--rerank --reranking",
    "verbose": "-v --verbose --log-verbose",
}
_LISTS = {"lora": "--lora", "lora_scaled": "--lora-scaled"}
#: Flags without a value that have no effect here.
_WITHOUT = (
    "--jinja --no-jinja --embedding --embeddings --metrics --props --slots --no-slots --webui --no-webui --ui --no-ui "
    "--cont-batching -cb --no-cont-batching -nocb --mlock --no-mmap --mmap --warmup --no-warmup --no-context-shift "
    "--log-disable --log-timestamps --log-prefix --swa-full --no-kv-unified -no-kvu --no-kv-offload -nkvo --check-tensors --offline "
    "--no-perf --perf --special --mmproj-auto --no-mmproj-auto --mmproj-offload --no-mmproj-offload --prefill-assistant "
    "--numa-isolate --direct-io"
)
#: The same with a value, which some may lack.
_WITH = (
    "-fa --flash-attn -ub --ubatch-size -tb --threads-batch -to --timeout --threads-http --log-file --log-colors -lv --verbosity "
    "--prio --poll --numa --cache-reuse -sps --slot-prompt-similarity --draft-min --draft-p-min "
    "--spec-draft-n-min --spec-draft-p-min --spec-draft-ngl -ngld --gpu-layers-draft -cd --ctx-size-draft --reasoning-format --keep "
    "--defrag-thold -dt --ctx-checkpoints --swa-checkpoints -fit --fit --image-min-tokens --image-max-tokens"
)
#: The flags that have an effect.
NAMES = [
    flag
    for flags in (*(flags for _, flags in _FLAGS.values()), *_SWITCHES.values(), *_LISTS.values())
    for flag in flags.split()
]
#: Those, and the flags that have none.
KNOWN = frozenset((*NAMES, *_WITHOUT.split(), *_WITH.split()))
#: Flags that `api_like_OAI.py` has, too.
_SHARED = ("--host", "--port", "--api-key")


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one sentence."""

    def error(self, message: str) -> NoReturn:
        """End with the mistake on stderr."""
        name = self.prog.removeprefix("unilect ")
        self.exit(2, f"unilect: {name}: {message}. `{self.prog} --help` lists its flags.\n")


class _Raising(Parser):
    """A parser whose mistakes are errors of a configuration."""

    def error(self, message: str) -> NoReturn:
        """
        Raises:
            ConfigError: The mistake.
        """
        raise ConfigError(f"llama-server: {message}.")


def is_meant(arguments: Sequence[str]) -> bool:
    """Return True for llama-server's command line, and not that of the older `api_like_OAI.py`."""
    own = KNOWN - {*_SHARED}
    return any(argument.partition("=")[0] in own for argument in arguments)


def values_of(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """
    Return the options of a configuration for a command line, and what is otherwise than it was.

    Raises:
        ConfigError: Something cannot be done.
        SystemExit: The arguments are wrong, or ask for help.
    """
    parser = _parser()
    known, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(f"no such flag of llama-server is known here: {rest[0]}")
    given = {name: value for name, value in vars(known).items() if value is not None}
    name, table, notices = _table(given)
    values = {
        "host": given.get("host", "127.0.0.1"),
        "port": given.get("port", PORT),
        "api_keys": _keys(given) or None,
        "tls_cert": given.get("tls_cert"),
        "tls_key": given.get("tls_key"),
        "log_level": "debug" if given.get("verbose") else None,
        "insecure_no_auth": given.get("insecure_no_auth"),
        "on_unknown_model": "default",
        "models": {name: table},
    }
    return values, notices


def is_switch(flag: str) -> bool:
    """Return True for a flag that has no value."""
    return flag in {*_WITHOUT.split(), *" ".join(_SWITCHES.values()).split()}


def import_flags(
    arguments: Sequence[str], model: str | None = None
) -> tuple[str, dict[str, Any], dict[str, Any], list[str]]:
    """
    Return the name and the table of a command line's model, options of the server, and what has no counterpart. Files are not read.

    Args:
        model: The model, where no flag names one.

    Raises:
        ConfigError: It names no model, or a flag has a wrong value.
    """
    words, unknown = _split_unknown(arguments)
    known, rest = _parser(_Raising).parse_known_args(words)
    given = {option: value for option, value in vars(known).items() if value is not None}
    if model is not None and not {"model", "model_url", "hf_repo"} & given.keys():
        given["model"] = model
    notices = [f"{flag}: has no counterpart here{_why(flag)}." for flag in unknown]
    if rest:  # which may be secret
        notices.append(f"{len(rest)} words belong to no flag; left out.")
    if given.pop("api_key_file", None):
        notices.append("--api-key-file: is not read; name its keys in `api_keys`.")
    name, table, more = _table(given)
    server = {"host": given.get("host"), "port": given.get("port"), "api_keys": _keys(given)}
    server |= {one: given.get(one) for one in ("tls_cert", "tls_key")}
    return name, table, {k: v for k, v in server.items() if v}, [*notices, *more]


def _split_unknown(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of known flags with their values, and the names of unknown flags, whose values are left out with them."""
    words, unknown, drops = list[str](), list[str](), False
    for word in arguments:
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):  # which llama-server takes with underscores, too
            flag = flag.replace("_", "-")
            word = f"{flag}{equals}{value}"
        if _NUMBER.match(word) and words and words[-1] in KNOWN and not drops:
            words[-1] += f"={word}"  # which would be taken for a flag
            continue
        if word.startswith("-") and not _NUMBER.match(word):
            drops = flag not in KNOWN
            if drops:
                unknown.append(flag[:64])
        if not drops:
            words.append(word)
    return words, unknown


def _why(flag: str) -> str:
    why = why_absent(flag.lstrip("-").replace("-", "_"))
    return f": {why}" if why else ""


def _table(given: dict[str, Any]) -> tuple[str, dict[str, Any], list[str]]:
    """Return the name and the table of the model, and what is otherwise than it was."""
    notices = [_without(flag) for flag in given.pop("without", [])]
    table = {name: given[name] for name in _OPTIONS if name in given}
    table = _engine(given, notices) | table
    if defaults := _defaults(given):
        table["defaults"] = defaults
    name, table["source"], table["aliases"] = _model(given)
    table["unsupported"] = "report"  # llama-server ignores what it does not know; here it is named
    return name, table, notices


def _parser(kind: type[Parser] = Parser) -> Parser:
    parser = kind(prog="unilect compat llamacpp", allow_abbrev=False)
    for name, (kind, flags) in _FLAGS.items():
        parser.add_argument(*flags.split(), dest=name, type=kind)
    for name, flags in _SWITCHES.items():
        parser.add_argument(*flags.split(), dest=name, action="store_true", default=None)
    parser.add_argument("--insecure-no-auth", action="store_true", default=None)
    parser.add_argument("--lora", action="append")
    parser.add_argument("--lora-scaled", action="append", nargs="+")
    for flags, count in ((_WITHOUT, 0), (_WITH, "?")):
        for flag in flags.split():
            parser.add_argument(
                flag, dest="without", action=_Without, nargs=count, help=argparse.SUPPRESS
            )
    return parser


class _Without(argparse.Action):
    """A flag that has no effect, and is told."""

    def __call__(self, parser: Any, space: Any, value: Any, flag: str | None = None) -> None:
        """Note the flag."""
        space.without = [*(space.without or []), flag]


def _without(flag: str) -> str:
    why = why_absent(flag.lstrip("-").replace("-", "_"))
    return f"{flag}: no effect: {why}." if why else f"{flag}: no effect."


def _model(given: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Return the name, the source and the further names of the model."""
    if "hf_repo" in given:
        repo, _, quantization = given["hf_repo"].partition(":")
        file = given.get("hf_file")
        source = f"gguf:{repo}/{file}" if file else f"gguf:{repo}:{quantization or 'Q4_K_M'}"
    else:
        source = given.get("model") or given.get("model_url") or ""
    if not source:
        raise ConfigError(
            "llama-server: names no model. Add `-m model.gguf`; a folder of models has no router here."
        )
    own = name_source(source)[0] if "hf_repo" not in given else name_from(repo.partition("/")[2])
    names = [one.strip() for one in given.get("alias", "").split(",") if one.strip()] or [own]
    return names[0], source, names[1:]


def _engine(given: dict[str, Any], notices: list[str]) -> dict[str, Any]:
    """Return the options of the engine that are reckoned otherwise here."""
    found: dict[str, Any] = {}
    parallel, context = given.get("parallel", -1), given.get("context", 0)
    if given.get("kv_unified"):
        told = f"-np {parallel} " if parallel > 0 else ""
        parallel = -1
        notices.append(
            f"{told}--kv-unified: requests share no context here: each has all of `-c`, and as many are answered at a time as there is "
            "memory for, at most 4. Set `parallel` for another number."
        )
    if parallel > 0:
        found["parallel"] = parallel
    if context > 0:
        found["context"] = max(16, context // max(1, parallel))
        if parallel > 1:
            notices.append(
                f"-c {context} -np {parallel}: each request has a context of {found['context']} tokens, as in llama-server."
            )
    else:
        notices.append(
            "-c: the model's whole context there, and at most 8192 tokens here: set `context` for more."
        )
    layers = given.get("gpu_layers", "auto")
    if layers.isdecimal() and int(layers) < _MANY:
        found["gpu_layers"] = int(layers)
    elif layers.isdecimal() or layers in ("all", "-1"):
        notices.append(f"-ngl {layers}: all layers are on the GPU where llama.cpp has one.")
    elif layers != "auto":
        raise ConfigError(f"-ngl: expected a number, `auto` or `all`, found {layers[:50]!r}.")
    scaled = [(*one, "")[:2] if len(one) > 1 else tuple(one[0].split(":", 1)) for one in given.get("lora_scaled", [])]  # fmt: skip
    lora = [path for text in given.get("lora", []) for path in text.split(",")]
    lora += ["=".join(one) for one in scaled]
    found |= {"lora": lora} if lora else {}
    if template := given.get("chat_template_file") or given.get("chat_template"):
        found["chat_template"] = template
    if given.get("pooling", "none") != "none" or given.get("rerank"):
        found["pooling"] = "rank" if given.get("rerank") else given["pooling"]
    found |= _of_llamacpp(given, notices)
    if given.get("sleep", -1) > 0:
        found["idle_stop_s"] = float(given["sleep"])
    return found


def _of_llamacpp(given: dict[str, Any], notices: list[str]) -> dict[str, Any]:
    """Return the options of llama.cpp alone that are written otherwise here."""
    found: dict[str, Any] = {}
    if given.get("context_shift"):
        found["context_shift"] = True
    for kind in given.get("spec_type", "none").split(","):
        if kind.startswith("ngram"):
            found["speculative"] = "ngram"
        elif kind not in _DRAFTS:
            notices.append(f"--spec-type {kind[:64]}: has no counterpart here.")
    if shares := given.get("tensor_split"):
        try:
            found["tensor_split"] = [float(share) for share in re.split("[,/]", shares)]
        except ValueError as error:
            raise ConfigError(
                f"-ts: expected numbers such as 3,1, found {shares[:50]!r}."
            ) from error
    return found


def _defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that requests have that do not say."""
    found = {name: given[name] for name in _PARAMETERS if name in given}
    for name in ("seed", "max_tokens", "thinking_budget_tokens"):
        if found.get(name, 0) < 0:  # a random seed, and no bound
            del found[name]
    if text := given.get("chat_template_kwargs"):
        try:
            found["chat_template_kwargs"] = json.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"--chat-template-kwargs: expected a JSON object such as '{{\"enable_thinking\": false}}', found {text[:50]!r}."
            ) from error
    return found


def _keys(given: dict[str, Any]) -> list[str]:
    keys = [key.strip() for key in given.get("api_key", "").split(",") if key.strip()]
    if file := given.get("api_key_file"):
        try:
            lines = Path(file).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = unreadable(error) if isinstance(error, OSError) else f"{file} is not UTF-8 text."
            raise ConfigError(f"--api-key-file: {why}") from error
        keys += [line.strip() for line in lines if line.strip()]
    return keys
