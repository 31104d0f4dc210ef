"""
Make the generated documentation from the code, or with `--check` say which of it is not what the code says (exit code 1).

Whole files: docs/configuration.md, docs/errors.md, docs/metrics.md, unilect.example.toml. Parts, between `<!-- NAME -->` and `<!-- /NAME -->`:
the tables of parameters, of constraints, of other servers' fields, of conversations and of JSON Schema's keywords in docs/api.md, the formats in docs/templates.md,
the lines of `unilect connect` in docs/clients, and the list of clients there.
"""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from unilect.answers.inflight import Answers
from unilect.api.parameters import constraints as foreign_constraints
from unilect.api.parameters import foreign
from unilect.api.parameters import rules as parameters
from unilect.cli import _remedies as remedies
from unilect.config.admin import AdminConfig
from unilect.config.document import write_value
from unilect.config.fleet import FleetConfig
from unilect.config.hints import VARIABLES
from unilect.config.kinds import name_kinds
from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig
from unilect.config.option import Table, tables_in
from unilect.config.otel import OtelConfig
from unilect.config.page import PageConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.config.values import in_words
from unilect.constraints import keywords, schema
from unilect.core import errors, requests
from unilect.engines.gguf import _request as _gguf_request
from unilect.engines.transformers.words import parameters as _hf_parameters
from unilect.models.registry import Registry
from unilect.residency.residency import Residency
from unilect.server._connections import Connections, Limits
from unilect.server._state import metrics_of
from unilect.store.database import Database
from unilect.templates import chat as templates
from unilect.templates.takes import Takes
from unilect.web.connect.clients import CLIENTS
from unilect.web.connect.lines import Model, Server

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ("prompt", "input")
CONTENT = ("messages", *PROMPTS)  # what the request is about
#: The server of which the pages in docs/clients show the lines.
EXAMPLE_SERVER = Server("http://127.0.0.1:8000/v1", (Model("coder", 65536),), needs_key=True)
CLIENT_PAGES = ROOT / "docs" / "clients"
#: The tables beside the server's own options: a heading, a line below it, and the options.
SECTIONS: tuple[tuple[str, str, type[Table]], ...] = (
    ("The store", "The table `[store]`.", StoreConfig),
    (
        "Limits",
        "The table `[limits]`; `[owners.NAME]` and `limits` of a model have the same without `url`. See [limits](limits.md).",
        LimitsConfig,
    ),
    ("The admin API", "The table `[admin]`; see [operation.md](operation.md).", AdminConfig),
    ("The page", "The table `[page]`; see [page.md](page.md).", PageConfig),
    ("Traces", "The table `[otel]`; see [monitoring.md](monitoring.md#traces).", OtelConfig),
    ("Fleet", "The table `[fleet]`; see [fleet.md](fleet.md).", FleetConfig),
    (
        "A model",
        "The table `[models.NAME]`.\nA flag sets an option for every model that supports it.\n"
        "An option of some kinds of models is refused for other kinds.",
        ModelConfig,
    ),
)


def configuration() -> str:
    """docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Made by `scripts/docs.py` from `server.py`, `store.py`, `limits.py`, `admin.py`, `page.py`, `otel.py` and `model.py` in `src/unilect/config`.",
        "",
        "An option is set in a TOML file (`--config FILE`, or `UNILECT_CONFIG`), in the environment, or by a flag.",
        "Flags override the environment, and the environment overrides the file.",
        "[`unilect.example.toml`](../unilect.example.toml) has every option.",
        "",
        "**Paths.** A relative path in a file is relative to the folder of that file; on the command line and in the environment",
        "to the working directory. `~` is the home directory. This holds for `source` (a GGUF file, a folder, `gguf:`, `hf:`,",
        "`chatglm:`), `lora`, `mmproj`, `tokenizer`, `slot_save_path`, `tls_cert`, `tls_key`, the file in the `url` of the store and the socket in `listen` of `[admin]`, and for `chat_template` and `completion_template`",
        "where they have a slash or an ending such as `.jinja`. A `source` such as `gguf:org/repo/file.gguf` is a path where there is",
        "such a file, else a file of the Hugging Face hub.",
        "",
        '**Lists.** A list of one text may be written as the text: `lora = "adapter.gguf"`.',
        "In the environment the texts of a list are separated by commas.",
        "",
        "**Environment.** `UNILECT_API_KEY` is the key of a server and of its clients; for a server it may be several, separated by",
        "commas (`UNILECT_API_KEYS` is its older name). An unknown variable `UNILECT_*` is an error, unless the file uses it as",
        "`$UNILECT_...`; names that begin with `UNILECT_TEST_` or `UNILECT_BENCH_` are ignored.",
        "Where an option says that `$NAME` takes it from the environment, the variable `NAME_FILE` may name a file that holds it.",
        "",
        "**Errors.** All errors are reported at once, each with the file and line, the variable or the flag. Unknown options are errors.",
        "`unilect config check FILE` checks what `unilect serve` would: options, paths, model files, certificates, ports and keys.",
        "It starts nothing, downloads nothing and opens no connection. It prints each model and `OK` (exit code 0), or the errors (exit code 2).",
        "",
        "## The server",
        "",
    ]
    lines += options(Config)
    for title, about, table in SECTIONS:
        lines += [f"## {title}", "", about, "", *options(table)]
    return "\n".join(lines).rstrip() + "\n"


def options(table: type[Table]) -> Iterator[str]:
    """The sections of a table's options."""
    for name, kind in types_of(table).items():
        facts = [in_words(kind).replace("object", "table"), f"default {default_words(table, name)}"]
        if kinds := table.declared[name].kinds:
            facts.append(f"for {name_kinds(kinds)}")
        if flag := table.declared[name].flag:
            facts.append(f"flag `{flag.name}`")
        if table is Config and name not in tables_in(Config):
            variables = [variable for variable, one in VARIABLES.items() if one == name]
            facts.append("environment " + " or ".join(f"`{one}`" for one in variables))
        description = table.declared[name].description
        yield from (f"### `{name}`", "", "; ".join(facts) + ".", "", description, "")


def example() -> str:
    """unilect.example.toml."""
    lines = [
        "# Every option of unilect, with its default or an example. Made by scripts/docs.py from server.py, store.py, limits.py, admin.py, page.py, otel.py, model.py and llamacpp.py in src/unilect/config.",
        "# Use it with `unilect serve --config FILE`; `unilect config check FILE` checks it.",
        "# Relative paths are relative to the folder of this file. The environment (UNILECT_PORT and so on) and flags override it.",
        "",
    ]
    lines += example_options(Config)
    lines += ["# What is kept of the Responses API beyond a request.", "[store]", ""]
    lines += example_options(StoreConfig)
    lines += ["# Limits of every API key that has no such limit of its own.", "[limits]", ""]
    lines += example_options(LimitsConfig)
    lines += [
        "# Limits of all keys of an owner together are tables [owners.NAME] with the options of [limits], without url.",
        "",
    ]
    lines += ["# The admin API, on an address of its own.", "[admin]", ""]
    lines += example_options(AdminConfig)
    lines += ["# The page for browsers; `page = false` instead turns it off.", "[page]", ""]
    lines += example_options(PageConfig)
    lines += ["# Traces for OpenTelemetry.", "[otel]", ""]
    lines += example_options(OtelConfig)
    lines += ["# The Ray cluster of models with `replicas`.", "[fleet]", ""]
    lines += example_options(FleetConfig)
    lines += [
        "# Models by name; the first is the default.",
        "[models.demo]",
        "",
    ]
    lines += example_options(
        ModelConfig, [name for name in types_of(ModelConfig) if name != "base"]
    )
    lines += ["# Another model, the fallback of the first.", "[models.spare]", ""]
    lines += ["# Another name for the first.", "[models.brief]", ""]
    lines += example_options(ModelConfig, ["base"])
    return "\n".join(lines) + "\n"


def example_options(table: type[Table], only: Collection[str] = ()) -> Iterator[str]:
    """The options of a table, or some of them, commented out."""
    for name, kind in types_of(table).items():
        if only and name not in only:
            continue
        if table is Config and name in tables_in(Config) and name != "listeners":
            continue
        text = re.sub(r"\*(\w+)\*", r"\1", table.declared[name].description).replace("`", "")
        yield from textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")
        words = in_words(kind).replace("`", "").replace("object", "table")
        yield f"# {sentence_start(words)}; default {default_words(table, name).replace('`', '')}."
        one = table.declared[name]
        yield from (f"# {name} = {toml(one.default if one.example is None else one.example)}", "")


def error_list() -> str:
    """docs/errors.md."""
    sample = errors.ModelNotFound("There is no model `x`.", param="model").envelope()
    lines = [
        "# Errors",
        "",
        "Made by `scripts/docs.py` from `src/unilect/core/errors.py`.",
        "",
        "Every error response has the same body, for OpenAI and FastChat clients:",
        "",
        "```json",
        json.dumps(sample, indent=2),
        "```",
        "",
        "`error.code` is the code below, and the outer `code` FastChat's number.",
        "With `dialect` `fastchat`, `chatglm` or `alpaca`, and on FastChat's and chatglm.cpp's own routes, `detail` repeats the inner object at status 401, for",
        "FastChat clients, and has the location and message at status 400, as in FastAPI.",
        "Responses of status 429, 503 and 529 have a `Retry-After` header in seconds, unless a second try would be in vain; then they have",
        "`x-should-retry: false`, which the official clients obey, as do 401, 403 and 501.",
        "",
        'After the first byte of a streamed answer an error is one frame, `data: {"error": {...}}`, and the stream ends without',
        "`[DONE]`.",
        "",
        "`unilect why REQUEST_ID` tells why a recent request failed.",
        "",
        "| status | code | type | number | class | meaning | what to do |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for error in error_classes():
        code = f"`{error.code}`" if error.code else ""
        lines.append(
            f"| {error.status} | {code} | `{error.type}` | {error.number} | `{error.__name__}` | {first_sentence(error.__doc__)} | {remedies.of_error(error)} |"
        )
    lines += [
        "",
        "Configuration and command-line errors (`ConfigError`) are printed to stderr; the exit code is 1, or 2 for `unilect config check`.",
    ]
    return "\n".join(lines) + "\n"


def error_classes() -> list[type[errors.UnilectError]]:
    """All errors that become answers, by status."""
    found = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.UnilectError) and value.code
    ]
    return sorted(found, key=lambda error: error.status)


def metric_list() -> str:
    """docs/metrics.md."""
    database = Database("sqlite://")
    connections = Connections(Limits())
    rejoin = Answers(1.0, {})
    registry = Registry([], residency=Residency(1))
    metrics = metrics_of(registry, connections, {}, database, per_key=True, rejoin=rejoin)
    lines = [
        "# Metrics",
        "",
        "Made by `scripts/docs.py` from what a server exposes.",
        "",
        "`GET /metrics` has all metrics in Prometheus' text format; where clients need a key it requires one of its own ([monitoring.md](monitoring.md#metrics)).",
        "[deploy/prometheus](../deploy/prometheus) has a scrape configuration and alert rules, [deploy/grafana](../deploy/grafana) a dashboard.",
        "No label has a value of a client's choice: models, backends, endpoints, statuses and error codes are closed lists.",
        "A `backend` is the scheme, host and port of a server, or the name of a model's file; several with the same name are added up.",
        "A counter of a model or backend starts at 0 again if the model is reloaded or its backend replaced.",
        "",
        "| metric | type | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for family in sorted(metrics.families(), key=lambda family: family.name.removesuffix("_total")):
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    lines += [
        "",
        "GPU memory is not among them: llama.cpp does not tell it; use the exporter of the GPU's vendor.",
    ]
    return "\n".join(lines) + "\n"


def keyword_table() -> str:
    """The table of JSON Schema's keywords for docs/api.md."""
    names = sorted(
        {
            *schema.ASSERTIONS - {"format"},
            *keywords.LLGUIDANCE,
            *(f"format:{name}" for name in keywords.FORMATS),
            "pattern:irregular",
        }
    )
    lines = ["| keyword | GGUF engine | transformers |", "| --- | --- | --- |"]
    for name in names:
        if name.endswith(":beside") or (name.startswith("format:") and name.endswith(":pattern")):
            continue
        cells = [
            "during generation" if name in enforced else "by retrying"
            for enforced in (keywords.LLAMACPP, keywords.LLGUIDANCE)
        ]
        word, _, qualifier = name.partition(":")
        how = {
            "foreign": r" with classes of Unicode (`\p{L}`)",
            "irregular": " that looks around, or refers back",
            "integer": " of integers",
            "list": " as a list",
            "pattern": " beside a `pattern`",
        }
        told = f"`format: {qualifier}`" if word == "format" else f"`{word}`{how.get(qualifier, '')}"
        lines.append(f"| {told} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def parameter_table() -> str:
    """The table of parameters for docs/api.md."""
    endpoints = {
        path.removeprefix("/v1/").split("/")[0]: kind for path, kind in parameters.ENDPOINTS.items()
    }
    rows: dict[str, list[tuple[str, type[requests.Request], inspect.Type]]] = {}
    for endpoint, struct in endpoints.items():
        for name, kind in types_of(struct).items():
            if name != "raw_fields":
                rows.setdefault(name, []).append((endpoint, struct, kind))
    lines = [
        "| parameter | endpoints | value | GGUF engine | transformers | OpenAI upstream |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, uses in rows.items():
        values = dict.fromkeys(in_words(kind) for _, _, kind in uses)
        if name in PROMPTS:
            values = {"text, list of texts, token ids, or list of such lists": None}
        where = "all" if len(uses) == len(endpoints) else ", ".join(use[0] for use in uses)
        own = all(name in struct.gateway_fields for _, struct, _ in uses) and name not in CONTENT
        engines = " | ".join(
            "by unilect" if own else engine_support(name, table)
            for table in (_gguf_request.PARAMETERS, _hf_parameters.PARAMETERS)
        )
        upstream = "by unilect" if own else "passed on"
        lines.append(f"| `{name}` | {where} | {'; '.join(values)} | {engines} | {upstream} |")
    for name in sorted(set(parameters.ACCEPTED) - set(rows)):  # taken as they come, of any form
        lines.append(f"| `{name}` | all | any | accepted | accepted | passed on |")
    return "\n".join(lines)


def constraint_table() -> str:
    """The table of other servers' constraints for docs/api.md."""
    lines = ["| parameter | becomes |", "| --- | --- |"]
    for name in sorted(foreign.CONSTRAINTS):
        ours = " or ".join(f"`{one}`" for one in foreign_constraints.becomes(name))
        lines.append(f"| `{name}` | {ours or 'refused'} |")
    return "\n".join(lines)


def foreign_table() -> str:
    """The other fields of other servers that would change an answer, for docs/api.md."""
    lines = ["| neutral value, besides null | fields |", "| --- | --- |"]
    rows: dict[str, list[str]] = {}
    for name, values in sorted(foreign.CHANGES_ANSWER.items()):
        if name in foreign.CONSTRAINTS or any(
            name in parameters.parameters_of(kind) for kind in parameters.ENDPOINTS.values()
        ):
            continue
        words = "any up to 0" if name in foreign.OFF_BELOW_ZERO else neutral_words(values)
        rows.setdefault(words, []).append(f"`{name}`")
    return "\n".join([*lines, *(f"| {words} | {', '.join(rows[words])} |" for words in rows)])


def takes_table() -> str:
    """The table of conversations that templates do not take, for docs/api.md."""
    lines = ["| what a template may not take | what it gets |", "| --- | --- |"]
    attributes = re.sub(r"\n {12}", " ", (Takes.__doc__ or "").partition("Attributes:\n")[2])
    for line in attributes.strip().splitlines():
        title, description = line.partition(": ")[2].split(". ", 1)
        lines.append(f"| {title[0].lower()}{title[1:]} | {description} |")
    return "\n".join(lines)


def neutral_words(values: tuple[Any, ...]) -> str:
    """Neutral values in words."""
    if values == foreign.EMPTY:
        return "false, 0 and what is empty"
    if any(isinstance(value, list) for value in values):
        return "an empty list, llama.cpp's own and SillyTavern's"
    return ", ".join(f"`{json.dumps(value)}`" for value in values) or "none"


def engine_support(name: str, table: Mapping[str, str]) -> str:
    """What an engine does with a parameter, as its table says."""
    if name in CONTENT:
        return "native"
    if name in parameters.ACCEPTED:
        return "accepted"
    return table.get(name, "ignored and named")


def formats() -> str:
    """The table of formats for docs/templates.md."""
    lines = ["| format | also | stop words |", "| --- | --- | --- |"]
    for name in templates.names():
        form = templates.forms()[name]
        also = ", ".join(f"`{alias}`" for alias in form.aliases)
        stop = ", ".join(f"`{json.dumps(word, ensure_ascii=False)[1:-1]}`" for word in form.stop)
        lines.append(f"| `{name}` | {also} | {stop.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z`)\]})])\. (?=[A-Z])", paragraph)[0].rstrip(".")


def types_of(kind: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    """The types of a Struct's fields, without their documentation; those of a table in the order of its options."""
    found = {field.name: inspect.type_info(field.type) for field in msgspec.structs.fields(kind)}
    if issubclass(kind, Table):
        found = {name: found[name] for name in kind.declared}
    return {
        name: one.type if isinstance(one, inspect.Metadata) else one for name, one in found.items()
    }


def toml(value: Any) -> str:
    """A value in TOML; of a table with options of its own, which have a section, nothing."""
    return "{}" if isinstance(value, msgspec.Struct) else write_value(value)


def default_words(table: type[Table], name: str) -> str:
    """An option's default as TOML, or `none`."""
    value = table.declared[name].default
    return "none" if value is None else f"`{toml(value)}`"


def sentence_start(text: str) -> str:
    """A text with a capital letter."""
    return text[:1].upper() + text[1:]


def client_lines(name: str) -> str:
    """What `unilect connect` prints for a client, as Markdown."""
    parts = [f"`unilect connect {name}` prints these lines for a running server:"]
    for block in CLIENTS[name].lines(EXAMPLE_SERVER, {}).blocks:
        parts.append(f"{block.heading}:\n\n```{block.language}\n{block.text}```")
    return "\n".join(("", "\n\n".join(parts), ""))


def client_page(name: str, old: str) -> str:
    """A page of docs/clients with its lines."""
    return put(old, "connect", client_lines(name))


def client_list() -> str:
    """The clients, with their pages where there are some."""
    lines = ["| client | page | lines |", "| --- | --- | --- |"]
    for name, client in CLIENTS.items():
        page = f"[{client.page}]({client.page})" if (CLIENT_PAGES / client.page).exists() else ""
        lines.append(f"| {client.title} | {page} | `unilect connect {name}` |")
    return "\n".join(lines)


def api(old: str) -> str:
    """docs/api.md with its tables."""
    new = put(old, "parameters", parameter_table())
    new = put(new, "constraints", constraint_table())
    new = put(new, "foreign", foreign_table())
    new = put(new, "takes", takes_table())
    return put(new, "keywords", keyword_table())


def put(text: str, name: str, part: str) -> str:
    """A text with the part between its markers replaced."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"scripts/docs.py: the markers {begin} and {end} are missing")
    return f"{before}{begin}\n{part}\n{end}{after}"


def text_of(file: Path) -> str:
    """A file's text; empty where there is no such file."""
    return file.read_text() if file.exists() else ""


FILES: dict[str, Callable[[str], str]] = {
    "docs/configuration.md": lambda old: configuration(),
    "docs/errors.md": lambda old: error_list(),
    "docs/metrics.md": lambda old: metric_list(),
    "docs/api.md": api,
    "docs/templates.md": lambda old: put(old, "formats", formats()),
    "docs/clients/README.md": lambda old: put(old, "clients", client_list()),
    **{
        f"docs/clients/{client.page}": partial(client_page, name)
        for name, client in CLIENTS.items()
        if "<!-- connect -->" in text_of(CLIENT_PAGES / client.page)
    },
    "unilect.example.toml": lambda old: example(),
}


def main() -> int:
    """Write the files, or check them."""
    check, stale = "--check" in sys.argv[1:], []
    for name, make in FILES.items():
        file = ROOT / name
        old = file.read_text() if file.exists() else ""
        new = make(old)
        if new != old:
            stale.append(name)
            if not check:
                file.write_text(new)
    for name in stale:
        print(f"{name}: {'is not what the code says; run scripts/docs.py' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
