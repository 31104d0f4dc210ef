"""environment.py: what Ray's processes are told by their environment."""

from pathlib import Path

import pytest

from unilect.fleet.environment import is_alone, ray_environment


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("", True),
        ("127.0.0.1", True),
        ("localhost", True),
        ("127.0.0.2", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback(host: str, alone: bool) -> None:
    """A cluster at 127.0.0.1 stays there; every other address is one that machines join at."""
    assert alone == is_alone(host)
    assert ("0" if alone else "1") == ray_environment(host, None)["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]  # fmt: skip


def test_the_token() -> None:
    """Ray is told the file of a token, and asked for one where there is a file."""
    told = ray_environment("10.0.0.1", Path("/folder/token"))

    assert ("token", "/folder/token") == (told["RAY_AUTH_MODE"], told["RAY_AUTH_TOKEN_PATH"])
    assert "RAY_AUTH_MODE" not in ray_environment("10.0.0.1", None)
