"""_changes.py: what a reload changes, and what it refuses."""

import pytest
from msgspec import structs

from unilect.config.admin import AdminConfig
from unilect.config.fleet import FleetConfig
from unilect.config.limits import Limits, LimitsConfig
from unilect.config.model import ModelConfig, Replicas
from unilect.config.otel import OtelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError
from unilect.server._changes import check_fixed, compare, same_backends

#: Another value of each option that is not among those that change while the server runs.
OTHER = {
    "tls_cert": "cert.pem",
    "admin": AdminConfig(listen="./a"),
    "limits": LimitsConfig(url="redis://localhost"),
    "store": StoreConfig(keys=False),
    "otel": OtelConfig(endpoint="http://c"),
    "fleet": FleetConfig(address="h:1"),
}
LIVE = {name for name, option in Config.declared.items() if option.live}


@pytest.mark.parametrize("name", sorted(Config.declared.keys() - LIVE - {"tls_key"}))
def test_what_needs_a_restart(name: str) -> None:
    """Every option that is not declared as live is refused by its name."""
    after = structs.replace(Config(), **{name: OTHER.get(name, "another")})
    with pytest.raises(ConfigError, match=f"^{name}: cannot be changed while the server runs"):
        check_fixed(Config(), after)


def test_what_changes() -> None:
    """Options that are changeable, keys of the admin API and the files of a certificate are not refused."""
    before = Config(tls_cert="a", tls_key="b", admin=AdminConfig(listen="./a", api_keys=["old"]))
    live = dict.fromkeys(LIVE, "another") | {"limits": LimitsConfig(parallel=2)}
    admin = AdminConfig(listen="./a", api_keys=["new"])
    check_fixed(before, structs.replace(before, **live, admin=admin, tls_cert="c", tls_key=None))


def test_same_backends() -> None:
    """What a backend does not know of makes no new one, and anything else does."""
    one = ModelConfig(source="gguf:a")

    assert same_backends(one, structs.replace(one, aliases=["b"], stop=["x"], idle_stop_s=1.0))
    assert not same_backends(one, structs.replace(one, context=512))
    assert not same_backends(one, structs.replace(one, options={"a": 1}))
    few, many = (structs.replace(one, replicas=Replicas(max=most)) for most in (1, 2))
    assert not same_backends(few, many)
    limited = [structs.replace(one, limits=Limits(parallel=most)) for most in (1, 2)]
    assert same_backends(*limited)


def test_in_words() -> None:
    """Changes are told by kind, in the order of the new configuration."""
    a, b, c = (ModelConfig(source=f"echo:{name}") for name in "abc")
    was = {"a": a, "b": b, "c": c}
    now = {"d": a, "b": structs.replace(b, aliases=["x"]), "a": b}
    done = compare(Config(models=was), Config(models=now, api_keys=["k"]), was, now, ["d", "a"])

    assert "added d; removed c; restarted a; adjusted b; changed api_keys" == str(done)
