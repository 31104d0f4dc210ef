"""The start screen: where a server answers, what it serves, and how it is called."""

import json
import shlex
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unilect.config import server as configuration
from unilect.config.server import Config
from unilect.models.model import Model
from unilect.models.sources import ALL
from unilect.runtime.redact import redact

MAX_FACTS = 20
#: Documentation addresses, to which a route is looked up and nothing is sent.
_ELSEWHERE = {"//0.0.0.0": "192.0.2.1", "//[::]": "2001:db8::1"}
_DISCARD = 9  # a port to which nothing is sent: the kernel only picks a way


class Call(NamedTuple):
    """
    A call that a model answers.

    Attributes:
        path: The endpoint, below the base URL.
        body: What is sent.
        python: The same with OpenAI's client: what is called, and what of its answer is shown; empty where it has no such call.
    """

    path: str
    body: Mapping[str, Any]
    python: str = ""


def example_call(models: Iterable[Model]) -> Call:
    """Return a call for the first model that can chat; without one, what the first model can do. One that is out comes last."""
    every = sorted(models, key=lambda one: one.state in ("out", "failed"))
    first = next((one for one in every if one.capabilities.chat), every[0] if every else None)
    name = first.name if first is not None else "MODEL"
    can = first.capabilities if first is not None else None
    if can is None or can.chat:
        hello = f"chat.completions.create(model={name!r}, messages=[dict(role='user', content='Hello!')])"
        body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}]}
        return Call("chat/completions", body, f"{hello}.choices[0].message.content")
    if can.completions:
        text = f"completions.create(model={name!r}, prompt='Once upon a time', max_tokens=32)"
        prompt = {"model": name, "prompt": "Once upon a time", "max_tokens": 32}
        return Call("completions", prompt, f"{text}.choices[0].text")
    if can.rerank:
        return Call("rerank", {"model": name, "query": "fruit", "documents": ["apple", "car"]})
    vector = f"embeddings.create(model={name!r}, input='Hello!').data[0].embedding[:3]"
    return Call("embeddings", {"model": name, "input": "Hello!"}, vector)


def start_screen(
    url: str,
    config: Config,
    call: Call,
    further: Sequence[str] = (),
    facts: Mapping[str, str] = {},
    asks_for_keys: bool = False,
) -> str:
    """
    Return one screen: where it listens, what it serves, and how to call it.

    Args:
        url: The server's own address.
        call: The example.
        further: The other addresses.
        facts: By the name of each model what there is to say of it.
        asks_for_keys: Clients need a key.
    """
    every = [redact(one.sources[0]) for one in config.models.values() if one.model == ALL]
    every += ["workers that register"] if config.fastchat_controller else []
    base = url.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")
    has_metrics = bool(config.metrics_keys) or not asks_for_keys
    header = ' -H "Authorization: Bearer $UNILECT_API_KEY"' if asks_for_keys else ""
    body = json.dumps(call.body, ensure_ascii=False)
    lines = [
        f"unilect answers at {base}/v1",
        *_addresses(url, base, config, further),
        f"models: {', '.join([*facts, *(f'all of {source}' for source in every)])}",
        *(f"  {name}: {fact}" for name, fact in list(facts.items())[:MAX_FACTS]),
        *([f"  and {len(facts) - MAX_FACTS} more"] if len(facts) > MAX_FACTS else []),
        "",
        f"  curl {base}/v1/{call.path}{header} -d {shlex.quote(body)}",
        "",
        *_python(call, base, asks_for_keys),
        f"in a browser: {base}/{'   to steer it there: unilect page' if config.page.on and config.page.steer else ''}",
        f"endpoints: {base}/docs{f'   metrics: {base}/metrics' if has_metrics else ''}   stop: Ctrl-C",
    ]
    return "\n".join(lines)


def _addresses(url: str, base: str, config: Config, further: Sequence[str]) -> list[str]:
    """Return a line for each address beside the first, also for the one by which other machines reach it."""
    lines = [
        f"         and at {other}/v1 ({each.dialect})"
        for other, each in zip(further, configuration.each_listener(config)[1:], strict=False)
    ]
    if base != url and (far := _for_others(url)):
        lines.insert(0, f"         and for other machines at {far}/v1")
    return lines


def _python(call: Call, base: str, asks_for_keys: bool) -> list[str]:
    if not call.python:
        return []
    key = "os.environ['UNILECT_API_KEY']" if asks_for_keys else "'none'"
    imports = "import os, openai" if asks_for_keys else "import openai"
    client = f"openai.OpenAI(base_url='{base}/v1', api_key={key})"
    return [f'  python -c "{imports}; print({client}.{call.python})"', ""]


def own_address(other: str) -> str:
    """
    Return the address of this machine from which another one is reached; nothing is sent.

    Raises:
        OSError: No way leads there.
    """
    family = socket.AF_INET6 if ":" in other else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        route.connect((other, _DISCARD))
        return str(route.getsockname()[0])


def _for_others(url: str) -> str:
    """Return the URL by which other machines reach a server that listens everywhere; empty where this machine has no network."""
    wildcard = next((one for one in _ELSEWHERE if one in url), "")
    if not wildcard:
        return ""
    try:
        own = own_address(_ELSEWHERE[wildcard])
    except OSError:
        own = socket.gethostname()
    host = f"[{own}]" if ":" in own else own
    return url.replace(wildcard, f"//{host}")
