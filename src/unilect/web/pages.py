"""
The HTML pages for browsers, without scripts and external resources.

Whatever stands in them is escaped. `HEADERS` go with each of them: no script runs, nothing is loaded, no other page may show them
in a frame, and nothing of them is kept.

Source: https://www.w3.org/TR/CSP3/
"""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib.metadata import version

MAX_MODELS = 200
_HOST = re.compile(r"^[A-Za-z0-9._\[\]:-]{1,255}$")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:54rem;margin:3rem auto;padding:0 1rem;"
    "color-scheme:light dark}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884;vertical-align:top}"
    "pre{overflow-x:auto;padding:.8rem;border:1px solid #8884;border-radius:.3rem}"
    "code{overflow-wrap:anywhere}footer{margin-top:2rem;opacity:.7}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Vary": "Accept",
}


def wants_html(accept: str) -> bool:
    """Return True for the Accept header of a browser that shows a page; other clients take anything, or JSON."""
    return "text/html" in accept.lower()


def page(body: str) -> str:
    """Return a whole page around its body, which is HTML."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>unilect</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>unilect</h1>{body}<footer>unilect {escape(version('unilect'))}</footer></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are HTML."""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{lines}</table>"


def home(
    host: str,
    is_tls: bool,
    models: Sequence[tuple[str, str, Sequence[str]]],
    has_keys: bool,
    has_metrics: bool,
) -> str:
    """
    Return the page at `/`: what this is, which models it has, and how to ask them.

    Args:
        host: What the request calls this server.
        models: The name, the kind and the limits of each.
        has_keys: Clients have to send a key.
        has_metrics: Everybody may read the metrics.
    """
    base = f"{'https' if is_tls else 'http'}://{host if _HOST.match(host) else 'localhost'}/v1"
    name = models[0][0] if models else "MODEL"
    asked = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello!"}]})
    key = ' \\\n  -H "Authorization: Bearer $UNILECT_API_KEY"' if has_keys else ""
    curl = f"curl {base}/chat/completions{key} \\\n  -d {shlex.quote(asked)}"
    rows = [
        (f"<code>{escape(model)}</code>", escape(kind), escape(", ".join(limits)))
        for model, kind, limits in models[:MAX_MODELS]
    ]
    more = f"<p>and {len(models) - MAX_MODELS} more." if len(models) > MAX_MODELS else ""
    links = "<a href=docs>The endpoints</a>; the same for programs: <a href=openapi.json>openapi.json</a>"
    if not has_keys:  # a browser sends a key to the pages for people only
        links += "; <a href=v1/models>the models</a>"
    if has_metrics:
        links += "; <a href=metrics>metrics</a>"
    wanted = (
        "one of the server's API keys" if has_keys else "any key, because this server requires none"
    )
    return page(
        "<p>This server serves local language models with the OpenAI API. Give an OpenAI client the base URL "
        f"<code>{escape(base)}</code> and {wanted}.</p><h2>Models</h2>"
        + (table(("Name", "Runs on", "Limits"), rows) if rows else "<p>There are none yet.</p>")
        + f"{more}<h2>Try it</h2><pre>{escape(curl)}</pre><h2>More</h2><p>{links}.</p>"
    )


def sign_in() -> str:
    """Make the page that a browser shows after it has prompted for a key and got none."""
    return page(
        "<p>This is a unilect server, which requires an API key.</p><p>Load this page again, and enter the key as the "
        "password; the user name may be anything. Programs send it as <code>Authorization: Bearer KEY</code>.</p>"
    )
