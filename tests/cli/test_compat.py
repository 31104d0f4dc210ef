"""compat.py: the older servers' command lines as configurations; tests/five_systems/test_compat_cases.py runs them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from unilect.cli._compat import FLAGS, SERVERS, Setup, setup
from unilect.config.model import RopeScaling
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import ConfigError
from unilect.demo import FOLDER
from unilect.engines.transformers.model.folder import own_template

BASE = ["--base_model", "x.gguf"]


def read(name: str, *arguments: str, **environment: str) -> Setup:
    """What a command line comes to."""
    return setup(name, arguments, environment)


def model(done: Setup) -> ModelConfig:
    """The only model."""
    (found,) = done.config.models.values()
    return found


@pytest.mark.parametrize("name", FLAGS)
def test_addresses(name: str) -> None:
    """Each server listens where it did, or on loopback where that was open to everybody."""
    done = read(name, *(BASE if name == "alpaca" else []))
    host, port = SERVERS[name].address

    assert (name, port) == (done.config.dialect, done.config.port)
    assert ("127.0.0.1" if host == "0.0.0.0" else host) == done.config.host
    assert (host == "0.0.0.0") == any(host in notice for notice in done.notices)


@pytest.mark.parametrize("name", FLAGS)
def test_an_open_address_needs_a_key(name: str) -> None:
    """An address for everybody that is asked for is an error without a key, and taken with one or by consent."""
    base = [*(BASE if name == "alpaca" else []), "--host", "0.0.0.0"]
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
        read(name, *base)

    assert ["k"] == read(name, *base, "--api-key", "k").config.api_keys
    assert read(name, *base, "--insecure-no-auth").config.insecure_no_auth


def test_a_key_opens_the_older_address() -> None:
    """With a key, also one of the environment, the older address is listened on."""
    assert "0.0.0.0" == read("alpaca", *BASE, "--api-key", "k").config.host
    assert "0.0.0.0" == read("chatglm", UNILECT_API_KEYS="k").config.host
    assert "0.0.0.0" == read("chatglm", "--insecure-no-auth").config.host


def test_uvicorn_has_an_address_of_its_own() -> None:
    """The line that ran uvicorn listened on loopback, and there is nothing to say about it."""
    done = read("chatglm", "chatglm_cpp.openai_api:app", "--host", "127.0.0.1", "--port", "8001")
    plain = read("chatglm", "chatglm_cpp.openai_api:app")

    assert ("127.0.0.1", 8001) == (done.config.host, done.config.port)
    assert ("127.0.0.1", 8000) == (plain.config.host, plain.config.port)
    assert not any("listened" in notice for notice in plain.notices)


@pytest.mark.parametrize(
    ("given", "source", "noticed"),
    [
        ([], "llamacpp+http://127.0.0.1:8080", False),
        (["--llama-api", "http://10.78.26.241:40081"], "llamacpp+http://10.78.26.241:40081", False),
        (["--llama-api", "https://h/prefix/"], "llamacpp+https://h/prefix", False),
        (["--llama-api", "10.78.26.241:40081"], "llamacpp+http://10.78.26.241:40081", True),
    ],
)
def test_the_server_of_llama_cpp(given: list[str], source: str, noticed: bool) -> None:
    """`--llama-api` keeps its path, and gets a scheme where it has none."""
    done = read("llamacpp", *given)

    assert source == model(done).source
    assert noticed == any("--llama-api" in notice for notice in done.notices)


def test_sampling_of_chatglm() -> None:
    """chatglm.cpp's defaults are taken over, and an answer's length counts the answer alone."""
    assert {"temperature": 0.95, "top_p": 0.7, "max_tokens": 2048} == model(
        read("chatglm")
    ).defaults


def test_https_of_uvicorn() -> None:
    """uvicorn's flags for a certificate are ours."""
    done = read("chatglm", "--ssl-keyfile", "k.pem", "--ssl-certfile", "c.pem")

    assert ("c.pem", "k.pem") == (done.config.tls_cert, done.config.tls_key)


def test_fastchat() -> None:
    """FastChat's flags name the controller, keys and a certificate."""
    done = read(
        "fastchat", "--controller-address", "http://c:1", "--api-keys", "k1,k2", "--ssl",
        SSL_KEYFILE="k.pem", SSL_CERTFILE="c.pem",
    )  # fmt: skip

    assert "fastchat+http://c:1" == model(done).source
    assert ["k1", "k2"] == done.config.api_keys
    assert ("c.pem", "k.pem") == (done.config.tls_cert, done.config.tls_key)
    assert ({"temperature": 0.7, "top_p": 1.0, "top_k": -1}, {"max_tokens": 16}) == (
        model(done).defaults,
        model(done).completion_defaults,
    )


def test_the_environment_of_fastchat() -> None:
    """CONTROLLER_ADDRESS and API_KEYS count where no flag is given."""
    environment = {"CONTROLLER_ADDRESS": "http://c:1", "API_KEYS": '["k"]'}
    done = setup("fastchat", [], environment)
    flags = setup(
        "fastchat", ["--controller-address", "http://d:2", "--api-keys", "l"], environment
    )

    assert ("fastchat+http://c:1", ["k"]) == (model(done).source, done.config.api_keys)
    assert ("fastchat+http://d:2", ["l"]) == (model(flags).source, flags.config.api_keys)


def test_settings_of_fastchat() -> None:
    """All models of the controller are served; a worker's timeout and the batch of embeddings are FastChat's, or the environment's."""
    plain = model(setup("fastchat", [], {}))
    given = {"FASTCHAT_WORKER_API_TIMEOUT": "7", "FASTCHAT_WORKER_API_EMBEDDING_BATCH_SIZE": "2"}
    told = model(setup("fastchat", [], given))

    assert ("*", 100, 4) == (plain.model, plain.timeout_s, plain.embedding_batch)
    assert (7, 2) == (told.timeout_s, told.embedding_batch)


def test_sampling_of_alpaca() -> None:
    """Chats and plain completions have each their own defaults."""
    found = model(read("alpaca", *BASE))

    assert {"temperature": 0.7, "top_p": 1.0, "top_k": 40, "max_tokens": 128} == found.defaults
    assert {"temperature": 0.1, "top_p": 0.75} == found.completion_defaults
    assert ("alpaca-zh", "alpaca-completion") == (found.chat_template, found.completion_template)


def test_tokenizer_and_alpha_of_alpaca() -> None:
    """The tokenizer is that which is named, else the adapter's, else the model's; alpha stretches the context."""
    base, lora = ("--base_model", str(FOLDER / "hf")), ("--lora_model", str(FOLDER / "lora-pirate"))
    named = model(read("alpaca", *base, *lora, "--tokenizer_path", "t", "--alpha", "2.5"))
    own = model(read("alpaca", *base, "--tokenizer_path", str(FOLDER / "hf")))
    grown = read("alpaca", *base, *lora, "--alpha", "auto")

    assert ("t", RopeScaling("ntk", 2.5)) == (named.tokenizer, named.rope_scaling)
    assert (None, None) == (own.tokenizer, own.rope_scaling)
    assert (None, RopeScaling("dynamic", 2.0)) == (
        model(grown).tokenizer,
        model(grown).rope_scaling,
    )
    assert any("doubles the trained context" in notice for notice in grown.notices)


def test_a_folder_that_is_called_like_the_bundled_model(tmp_path: Path) -> None:
    """A folder whose name begins like the bundled model's is a model of transformers like any other."""
    found = model(read("alpaca", "--base_model", "demo-7b", "--tokenizer_path", str(tmp_path)))

    assert ("alpaca-zh", str(tmp_path)) == (found.chat_template, found.tokenizer)


def test_the_tokenizer_of_an_adapter(tmp_path: Path) -> None:
    """A tokenizer in the adapter's folder is taken, and its chat template is the model's own way."""
    shutil.copytree(FOLDER / "hf", tmp_path / "base", ignore=shutil.ignore_patterns("tokenizer*"))
    shutil.copytree(FOLDER / "hf", tmp_path / "lora", ignore=shutil.ignore_patterns("config*"))
    found = model(
        read(
            "alpaca", "--base_model", str(tmp_path / "base"), "--lora_model", str(tmp_path / "lora")
        )
    )

    assert str(tmp_path / "lora") == found.tokenizer
    assert (None, own_template(tmp_path / "lora")) == (
        found.chat_template,
        found.completion_template,
    )


def test_ollama() -> None:
    """Models come from `--model`, and the address, the origins and options from Ollama's variables, as far as they have an effect on a model."""
    given = {
        "OLLAMA_HOST": "0.0.0.0:7000",
        "OLLAMA_ORIGINS": "http://a,http://b",
        "OLLAMA_CONTEXT_LENGTH": "4096",
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_KEEP_ALIVE": "1h",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
        "OLLAMA_MAX_QUEUE": "",
        "OLLAMA_FLASH_ATTENTION": "1",
    }
    done = setup("ollama", ["--model", "a/x.gguf,y=http://h/v1", "--api-key", "k"], given)
    plain = setup("ollama", [], {})

    assert {"x": ("a/x.gguf", 4096, 2, 3600.0, "q8_0"), "y": ("http://h/v1", None, None, 3600.0, "f16")} == {
        name: (one.source, one.context, one.parallel, one.idle_stop_s, one.cache_type_v)
        for name, one in done.config.models.items()
    }  # fmt: skip
    assert ("0.0.0.0", 7000) == (done.config.host, done.config.port)
    assert ["http://a", "http://b"] == done.config.allowed_origins
    assert ["OLLAMA_FLASH_ATTENTION: no effect; see docs/configuration.md for the options."] == (
        done.notices
    )
    assert ("demo:", "127.0.0.1", 11434, []) == (
        model(plain).source,
        plain.config.host,
        plain.config.port,
        plain.notices,
    )


def test_origins_that_are_none() -> None:
    """An origin that no page has is left out, and told; the older servers took any text."""
    done = setup("ollama", [], {"OLLAMA_ORIGINS": "http://a,app://*"})
    none = setup("ollama", [], {"OLLAMA_ORIGINS": "app://*"})

    assert (["http://a"], []) == (done.config.allowed_origins, none.config.allowed_origins)
    assert ["CORS: 'app://*' is ignored"] == [one[:26] for one in done.notices]


@pytest.mark.parametrize(
    ("name", "arguments", "environment", "said"),
    [
        ("nope", [], {}, "llamacpp, chatglm, fastchat, alpaca, ollama"),
        ("llamacpp", ["--user-name", "{}: "], {}, "{}"),
        ("fastchat", ["--allowed-origins", "*"], {}, "--allowed-origins"),
        ("fastchat", [], {"API_KEYS": "k"}, "API_KEYS"),
        ("fastchat", ["--ssl"], {"SSL_KEYFILE": "k"}, "SSL_CERTFILE"),
        ("chatglm", [], {"NUM_THREADS": "many"}, "NUM_THREADS"),
        ("alpaca", ["--base_model", "folder", "--alpha", "far"], {}, "--alpha"),
        ("alpaca", ["--base_model", "folder", "--alpha", "0.5"], {}, "--alpha"),
        ("ollama", [], {"OLLAMA_HOST": "h:many"}, "OLLAMA_HOST"),
        ("ollama", [], {"OLLAMA_CONTEXT_LENGTH": "long"}, "OLLAMA_CONTEXT_LENGTH"),
        ("ollama", [], {"OLLAMA_KEEP_ALIVE": "long"}, "OLLAMA_KEEP_ALIVE"),
        ("ollama", ["--model", "x.nothing"], {}, "x.nothing"),
    ],
)
def test_what_cannot_be_done(
    name: str, arguments: list[str], environment: dict[str, str], said: str
) -> None:
    """A mistake is one sentence that names the flag or the variable."""
    with pytest.raises(ConfigError) as raised:
        setup(name, arguments, environment)
    assert said in str(raised.value)


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--nope"], []])
def test_a_wrong_flag(arguments: list[str], capsys: Any) -> None:
    """A wrong flag, or one that is missing, ends with exit code 2 and one line that says where the flags are listed."""
    with pytest.raises(SystemExit) as raised:
        read("alpaca", *arguments)

    assert 2 == raised.value.code
    said = capsys.readouterr().err
    assert said.startswith("unilect: compat alpaca: ")
    assert "`unilect compat alpaca --help`" in said
    assert 1 == said.count("\n")


def test_what_is_ignored_is_named() -> None:
    """A model of an older server answers without what its backend does not honour, and says so."""
    assert {"report"} == {model(read(name, *(BASE if name == "alpaca" else []))).unsupported for name in FLAGS}  # fmt: skip
    assert "refuse" == Config(models={"m": ModelConfig()}).models["m"].unsupported
