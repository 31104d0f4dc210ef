"""Tests of unilect.models.stays."""

import sys

import pytest

from unilect.config.model import ModelConfig
from unilect.models import sources
from unilect.models.stays import Stays


@pytest.mark.parametrize(
    ("settings", "takes"),
    [
        ({"pin": True, "memory": "6GiB"}, True),
        ({"command": f"{sys.executable} -m http.server {{port}}", "model": "m"}, True),
        ({"source": "http://127.0.0.1:1/v1"}, False),
        ({"source": "echo:yes"}, False),
    ],
)
def test_who_takes_memory(settings: dict[str, object], takes: bool) -> None:
    """Engines and servers by command take memory of this machine, with what their tables say of it; servers elsewhere take none."""
    stays = sources.model("m", ModelConfig(**settings)).stays  # type: ignore[arg-type]

    pinned, memory = bool(settings.get("pin")), 6 * 2**30 if "memory" in settings else None
    assert Stays(takes, pinned, memory, None) == stays
