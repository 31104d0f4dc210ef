"""Anthropic's official clients find a key's limits in the headers that Anthropic's own API has."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from support.common import environments
from support.servers.serving import serve

pytestmark = [pytest.mark.heavy, environments.may_install]
SCRIPT = Path(__file__).parent / "anthropic_limits_client.py"
CONFIG = """
api_keys = ["sk-one"]
[limits]
requests_per_minute = 60
tokens_per_day = 100
[models.m]
source = "echo:"
options = { text = "yyyyyyyyyy" }
"""


@pytest.mark.parametrize("version", environments.ANTHROPIC)
def test_anthropic(version: str) -> None:
    """An answer tells what is left in Anthropic's headers, and an exhausted budget is a rate limit error that is not tried again."""
    python = environments.anthropic_python(version)
    with serve(config=CONFIG) as server:
        done = subprocess.run(
            [str(python), "-W", "error", str(SCRIPT), server.url, "sk-one"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert 0 == done.returncode, done.stderr
        log = server.log.read_text()
    found = json.loads(done.stdout)
    assert "yyyyy" == found["text"]
    told = {name: value for name, value in found["headers"].items() if "ratelimit" in name}
    day = told.pop("anthropic-ratelimit-tokens-reset")
    minute = told.pop("anthropic-ratelimit-requests-reset")
    assert {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-tokens-limit": "100",
        "anthropic-ratelimit-tokens-remaining": "75",
    } == told
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT00:00:00Z", day)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", minute)
    status, kind, headers = found["refused"]
    assert (429, "rate_limit_error", "false") == (status, kind, headers["x-should-retry"])
    assert 1 == len(re.findall(r"/v1/messages' 429", log))
