"""The work of `unilect bench`: settings in, results on the terminal and in files out."""

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop

from unilect.cli import _running_server as running
from unilect.cli._screen import fail, say, tell, tell_table
from unilect.cli.bench.load import INTERRUPTED, Plan, Run
from unilect.cli.bench.progress import Progress
from unilect.cli.bench.prompts import read_prompts
from unilect.cli.bench.report import to_html
from unilect.cli.bench.results import Results
from unilect.cli.bench.stats import Bounds
from unilect.cli.bench.target import Target
from unilect.core.bounds import raise_open_files
from unilect.core.errors import ConfigError, join_names

_NAMED = re.compile(r"([^=/:@]{1,40})=(?=https?://)")
_MOST_SERVERS = 2


def bench(
    servers: Sequence[str],
    models: Sequence[str],
    api_keys: Sequence[str],
    rate: tuple[float, ...] | None,
    concurrency: tuple[float, ...] | None,
    seconds: float,
    prompt_tokens: int,
    output_tokens: int,
    prompts: Path | None,
    requests: int | None,
    timeout: float,
    ttft_ms: float | None,
    tpot_ms: float | None,
    seed: int,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """
    Measure one or two servers.

    Args:
        servers: URLs, each with a name in front or none; models and keys are in the same order.
        rate, concurrency: The loads; at most one of them.
        timeout: In seconds.
        requests: The most of all steps together.

    Raises:
        ConfigError: The settings contradict each other, or a server does not answer; nothing was measured.
        SystemExit: No request was answered (1), or Ctrl-C has ended it (130).
    """
    if rate and concurrency:
        raise ConfigError("--rate and --concurrency: two kinds of load. Leave one of them out.")
    loads = rate or concurrency or (1.0, 2.0, 4.0, 8.0)
    if not rate and any(load != int(load) for load in loads):
        raise ConfigError("--concurrency: expected whole numbers, such as 1,2,4,8.")
    for flag, file in (("--json", json_file), ("--html", html_file)):
        _check_writable(flag, file)
    bounds = Bounds(ttft_ms and ttft_ms / 1000, tpot_ms and tpot_ms / 1000)
    conversations = read_prompts(prompts) if prompts else []
    plan = Plan("rate" if rate else "concurrency", loads, seconds, timeout, prompt_tokens, output_tokens, conversations, seed, requests, bounds)  # fmt: skip
    targets = _targets(servers, models, api_keys, plan)
    raise_open_files()
    began = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    progress = Progress(plan.unit)
    run = Run(plan, targets, progress.show)
    with progress.draw():
        uvloop.run(run.run())
    results = Results(plan, targets, run.steps, run.ended, _versions(), began)
    _print(results)
    if json_file:
        _write(json_file, msgspec.json.format(msgspec.json.encode(results.to_dict()), indent=2))
    if html_file:
        _write(html_file, to_html(results).encode("utf-8", "replace"))
    if run.ended == INTERRUPTED:
        raise SystemExit(130)
    if not any(step.completed for step in run.steps):
        fail("no request was answered.")


def _targets(
    servers: Sequence[str], models: Sequence[str], api_keys: Sequence[str], plan: Plan
) -> list[Target]:
    """
    Return the servers under test.

    Raises:
        ConfigError: There are too many, or one does not tell its models.
    """
    if len(servers) > _MOST_SERVERS:
        raise ConfigError(f"{len(servers)} servers: at most {_MOST_SERVERS} are compared in one run.")  # fmt: skip
    for flag, values in (("--model", models), ("--api-key", api_keys)):
        if len(values) > len(servers):
            raise ConfigError(f"{flag}: given {len(values)} times for {len(servers)} server{'s' if len(servers) > 1 else ''}.")  # fmt: skip
    targets = list[Target]()
    for number, text in enumerate(servers):
        named = _NAMED.match(text)
        url = running.with_path(text[named.end() :] if named else text, "")
        name = named[1] if named else urlsplit(url).netloc.rpartition("@")[2]
        if any(name == other.name for other in targets):
            name += f" ({number + 1})"
        key = api_keys[number] if number < len(api_keys) else None
        model = models[min(number, len(models) - 1)] if models else _first_model(url, key)
        targets.append(Target(name, url, model, key, plan.timeout_s, bool(plan.conversations)))
    return targets


def _first_model(url: str, api_key: str | None) -> str:
    names = running.model_names(url, api_key)
    if not names:
        raise ConfigError(f"{url}: the server lists no models. Name one with --model.")
    if len(names) > 1:
        say(f"{names[0]} is measured, the first of {join_names(names[:8])}; --model names another one", "info")  # fmt: skip
    return names[0]


def _print(results: Results) -> None:
    """Print the results."""
    for target in results.targets:
        tell(f"{target.name}: {target.model} at {target.url} {target.software}".rstrip())
    tell(", ".join(f"{name} {value}" for name, value in results.settings.items()))
    for title, head, rows in results.tables() if results.steps else ():
        tell(f"\n{title}\n")
        tell_table(head, rows, right=range(1, len(head)))
    for title, lines in (("Failures", results.failures()), ("Notes", results.notes())):
        if lines:
            tell("\n  ".join([f"\n{title}", *lines]))


def _versions() -> dict[str, str]:
    return {
        "unilect": version("unilect"),
        "Python": platform.python_version(),
        "client": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _check_writable(flag: str, file: Path | None) -> None:
    """
    Raises:
        ConfigError: A file cannot be written in the end.
    """
    if file is None:
        return
    if file.is_dir() or not file.absolute().parent.is_dir():
        why = "is a folder" if file.is_dir() else "its folder does not exist"
        raise ConfigError(f"{flag} {file}: {why}. Name a file.")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise ConfigError(f"{flag} {file}: may not be written by this user.")


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        fail(f"{file}: cannot be written ({error.strerror}).")
    tell(f"{file}: written.", on_stderr=True)
