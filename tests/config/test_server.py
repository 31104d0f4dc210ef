"""Tests of unilect.config.server; test_docs.py holds the documentation against it."""

from pathlib import Path
from typing import Any

import pytest

from unilect.config.admin import AdminConfig
from unilect.config.fleet import FleetConfig
from unilect.config.limits import LimitsConfig
from unilect.config.load import load, read
from unilect.config.option import Table
from unilect.config.otel import OtelConfig
from unilect.config.page import PageConfig
from unilect.config.server import (
    Config,
    ListenerConfig,
    ModelConfig,
    check,
    each_listener,
    is_loopback,
)
from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError


def file(tmp_path: Path, text: str) -> Path:
    """A configuration file with this text."""
    path = tmp_path / "unilect.toml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    """Without anything, the server listens on loopback and needs no key."""
    config = load(environment={})

    assert Config() == config
    assert ("127.0.0.1", 8000, [], {}) == (
        config.host,
        config.port,
        config.api_keys,
        config.models,
    )


def test_a_file(tmp_path: Path) -> None:
    """A file has the server's fields and a table for each model, in its order."""
    text = 'port = 9000\n[models.b]\nsource = "x.gguf"\nparallel = 2\n[models.a]\naliases = ["c"]\n'
    config = load(file(tmp_path, text), environment={})

    assert 9000 == config.port
    assert ["b", "a"] == list(config.models)
    assert config.models["b"] == ModelConfig(source=str(tmp_path / "x.gguf"), parallel=2)
    assert config.models["a"] == ModelConfig(aliases=["c"])


def test_later_ones_are_stronger(tmp_path: Path) -> None:
    """The environment is stronger than the file, and flags are stronger than both; unset flags are not."""
    path = file(tmp_path, 'port = 1\nhost = "127.0.0.1"\nlog_level = "debug"\n')
    environment = {"UNILECT_PORT": "2", "UNILECT_HOST": "127.0.0.2"}
    config = load(path, {"port": 3, "host": None}, environment)

    assert (3, "127.0.0.2", "debug") == (config.port, config.host, config.log_level)


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    """`UNILECT_CONFIG` names the file where no flag does."""
    path = file(tmp_path, "port = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("port = 2\n")

    assert 1 == load(environment={"UNILECT_CONFIG": str(path)}).port
    assert 2 == load(other, environment={"UNILECT_CONFIG": str(path)}).port


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("port", "9000", 9000),
        ("insecure_no_auth", "true", True),
        ("insecure_no_auth", "0", False),
        ("api_keys", "a, b,,", ["a", "b"]),
        ("api_keys", "", []),
        ("shutdown_grace_s", "1.5", 1.5),
        ("log_level", "debug", "debug"),
    ],
)
def test_the_environment(name: str, value: str, expected: Any) -> None:
    """Every field but the models can be set in the environment; lists are separated by commas."""
    config = load(environment={f"UNILECT_{name.upper()}": value})

    assert expected == getattr(config, name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 'x'", '1: port: expected an integer from 0 to 65535, found "x".'),
        ("port = 70000", "1: port: expected an integer from 0 to 65535, found 70000."),
        ("prot = 1", "1: prot: unknown option; did you mean `port`?"),
        (
            "[models.a]\nsorce = 'x'",
            "2: models.a.sorce: unknown option; did you mean `source`?",
        ),
        (
            "[models.a]\nparallel = 0",
            "2: models.a.parallel: expected an integer from 1 to 256, found 0.",
        ),
        (
            "[models.a]\ncache_type_k = 'q9'",
            "2: models.a.cache_type_k: expected one of `bf16`, `f16`, `f32`, `q4_0`",
        ),
        ('[models."a b"]', '1: models."a b": a model\'s name has 1 to 128 letters'),
        ("models = 1", "1: models: expected tables [models.NAME], found 1."),
        ("port = ", "is not valid TOML"),
        (
            "log_level = 'loud'",
            '1: log_level: expected one of `debug`, `error`, `info`, `warning`, found "loud".',
        ),
        ("api_keys = ['a b']", "api_keys: a key is empty, or has spaces"),
        ("api_keys = ['']", "api_keys: a key is empty"),
        ("api_keys = ['ü']", "api_keys: a key is empty"),
        ("host = '0.0.0.0'", "host: 0.0.0.0 can be reached from other machines"),
        (
            "[models.a]\naliases=['b']\n[models.b]",
            "models.b: the name `b` is already used by models.a",
        ),
        ("[models.a]\naliases=['a']", "models.a: the name `a` is already used by models.a"),
        ("api_keys = ['$NOT_SET']", "api_keys: the environment variable NOT_SET is not set."),
        ("[models.a]\napi_key = '$NOT_SET'", "models.a.api_key: the environment variable"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, said: str) -> None:
    """A mistake is one sentence that names the field and the reason."""
    with pytest.raises(ConfigError) as raised:
        load(file(tmp_path, text), environment={})

    assert said in str(raised.value)
    assert "\n" not in str(raised.value).strip()


@pytest.mark.parametrize(
    ("env", "keys"),
    [
        ({"UNILECT_API_KEY": "a"}, ["a"]),
        ({"UNILECT_API_KEY": "a, b"}, ["a", "b"]),
        ({"UNILECT_API_KEYS": "a,b"}, ["a", "b"]),
        ({"UNILECT_API_KEY": "a", "UNILECT_API_KEYS": "b"}, ["a", "b"]),
    ],
)
def test_the_key_has_one_name(env: dict[str, str], keys: list[str]) -> None:
    """`UNILECT_API_KEY`, as clients know it, is the server's key too, and its older name still is."""
    assert keys == load(environment=env).api_keys


def test_paths_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a file is relative to the file, and one in the environment or of a flag to the working directory."""
    (tmp_path / "etc").mkdir()
    path = tmp_path / "etc" / "u.toml"
    path.write_text('tls_cert = "c.pem"\n[models.a]\nsource = "a/m.gguf"\nlora = "x=0.5"\n')
    monkeypatch.chdir(tmp_path)
    config = load(Path("etc/u.toml"), {"tls_key": "k"}, {})
    other = load(path, environment={"UNILECT_TLS_CERT": "e.pem"})

    assert ("etc/c.pem", "k") == (config.tls_cert, config.tls_key)
    assert ("etc/a/m.gguf", ["etc/x=0.5"]) == (config.models["a"].source, config.models["a"].lora)
    assert "e.pem" == other.tls_cert


@pytest.mark.parametrize(("name", "value"), [("PORT", "x"), ("INSECURE_NO_AUTH", "perhaps")])
def test_mistakes_in_the_environment(name: str, value: str) -> None:
    """A mistake in the environment names the variable."""
    with pytest.raises(ConfigError, match=f"^UNILECT_{name}: "):
        load(environment={f"UNILECT_{name}": value})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A file that is missing, a folder or no text is told as such."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing", ".", "binary"):
        with pytest.raises(ConfigError, match=name):
            load(tmp_path / name, environment={})


def test_secrets(tmp_path: Path) -> None:
    """`$NAME` in a key's place is taken from the environment, and only there."""
    text = "api_keys = ['$A', 'b$A', '$', '$a-b']\n[models.m]\napi_key = '$B'\nsource = '$A'\n"
    config = load(file(tmp_path, text), environment={"A": "1", "B": "2"})

    assert ["1", "b$A", "$", "$a-b"] == config.api_keys
    assert ("2", "$A") == (config.models["m"].api_key, config.models["m"].source)


def test_secrets_in_files(tmp_path: Path) -> None:
    """A variable `NAME_FILE` names a file with the secret that `$NAME` stands for; the variable itself is stronger."""
    for name, text in (("one", "secret\n"), ("UNILECT_TWO", "  two words \n")):
        (tmp_path / name).write_text(text)
    text = "api_keys = ['$A', '$B']\n[models.m]\nsource = 'demo:'\napi_key = '$UNILECT_TWO'\n"
    env = {
        "A_FILE": str(tmp_path / "one"),
        "B": "of the variable",
        "B_FILE": str(tmp_path / "one"),
        "UNILECT_TWO_FILE": str(tmp_path / "UNILECT_TWO"),
    }
    config, _ = read(file(tmp_path, text), environment=env)
    assert ["secret", "of the variable"] == config.api_keys
    assert "two words" == config.models["m"].api_key


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "api_keys: A_FILE: .* cannot be read .No such file or directory"),
        (b" \n", "api_keys: A_FILE: .* is empty; expected a secret"),
        (b"\xff\xfe", "api_keys: A_FILE: .* cannot be read .it is not UTF-8"),
        (b"x" * 70_000, "api_keys: A_FILE: .* cannot be read .it has more than 65536 bytes"),
    ],
)
def test_wrong_files_of_secrets(tmp_path: Path, content: bytes | None, expected: str) -> None:
    """A file that holds no secret is told with the option, the variable and the reason, and never with what is in it."""
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        load(
            file(tmp_path, "api_keys = ['$A']\n"),
            environment={"A_FILE": str(tmp_path / "secret")},
        )


def test_no_secret(tmp_path: Path) -> None:
    """A secret that is nowhere is told with both ways to give it."""
    with pytest.raises(ConfigError, match=r"variable A is not set. Set it, or A_FILE to a file"):
        load(file(tmp_path, "api_keys = ['$A']\n"), environment={})


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("128.0.0.1", False),
        ("localhost.evil.example", False),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    """Only addresses that no other machine can reach are loopback."""
    assert expected is is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "", "my.host"])
def test_beyond_loopback(host: str) -> None:
    """Beyond loopback a key is needed, or the explicit wish for none."""
    with pytest.raises(ConfigError):
        check(Config(host=host))
    check(Config(host=host, api_keys=["k"]))
    check(Config(host=host, insecure_no_auth=True))


@pytest.mark.parametrize(
    "table",
    [
        Config,
        StoreConfig,
        LimitsConfig,
        AdminConfig,
        OtelConfig,
        PageConfig,
        FleetConfig,
        ModelConfig,
    ],
)
def test_options_are_described(table: type[Table]) -> None:
    """Every field is an option with a description that ends as a sentence."""
    assert {*table.declared} == {*table.__struct_fields__}
    for name, option in table.declared.items():
        assert option.description.endswith("."), name


def test_frozen() -> None:
    """A configuration cannot be changed."""
    assert Config.__struct_config__.frozen
    assert ModelConfig.__struct_config__.frozen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[listeners]]\nport = 1\nhost = "0.0.0.0"', "host: 0.0.0.0"),
        ("[[listeners]]\nhost = 'localhost'", "port"),
        ("[[listeners]]\nport = 1\ndialect = 'x'", "dialect"),
        ("tls_key = 'k'", "tls_key"),
        ("allowed_origins = ['*']\nallow_credentials = true", "allow_credentials"),
    ],
)
def test_options_that_contradict_each_other(text: str, said: str, tmp_path: Path) -> None:
    """A further address beyond loopback needs a key too, a TLS key its certificate, and `*` takes no credentials."""
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / "c.toml", environment={})


def test_each_listener() -> None:
    """A further address has what its table says, and the server's own options beside."""
    config = Config(
        dialect="chatglm", max_body_bytes=4096, listeners=[ListenerConfig(port=1, done=False)]
    )
    first, second = each_listener(config)

    assert (8000, None) == (first.port, first.done)
    assert (1, False, "chatglm", 4096) == (
        second.port,
        second.done,
        second.dialect,
        second.max_body_bytes,
    )
