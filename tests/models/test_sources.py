"""Tests of unilect.models.sources."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import chat
from support.backends.leases import acquire
from support.common.waiting import until
from support.models import shaped_gguf
from unilect.config.kinds import KIND_OF
from unilect.config.server import Config, ModelConfig
from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.models.source_names import name_source
from unilect.models.sources import backend, registry, spec_of, split
from unilect.runtime import plugins
from unilect.store.store import Store
from unilect.upstreams.openai.backend import OpenAIUpstream


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", ("demo", "")),
        ("demo", ("demo", "")),
        ("demo:", ("demo", "")),
        ("x.gguf", ("gguf", "x.gguf")),
        ("a/b/x.gguf", ("gguf", "a/b/x.gguf")),
        ("C:\\models\\x.gguf", ("gguf", "C:\\models\\x.gguf")),
        ("gguf:org/repo/x.gguf", ("gguf", "org/repo/x.gguf")),
        ("hf:org/name", ("hf", "org/name")),
        ("tests", ("hf", "tests")),
        ("http://h:8000/v1", ("http", "//h:8000/v1")),
        ("https://h/v1", ("https", "//h/v1")),
        ("openai+http://h/any/base", ("openai+http", "//h/any/base")),
        ("openai+https://h", ("openai+https", "//h")),
        ("http://h/v1/chat/completions", ("http", "//h/v1")),
        ("https://h/v1/embeddings/", ("https", "//h/v1")),
        ("http://h/v1/models?a=b", ("http", "//h/v1?a=b")),
        ("http://h/models", ("http", "//h/models")),
        ("llamacpp+http://h:8080/completion", ("llamacpp+http", "//h:8080")),
        ("x.GGUF", ("gguf", "x.GGUF")),
        (
            "https://huggingface.co/o/r/resolve/main/a/b%20c.gguf?download=true",
            ("gguf", "o/r/a/b c.gguf"),
        ),
        ("https://huggingface.co/o/r/blob/main/a.gguf", ("gguf", "o/r/a.gguf")),
        ("https://huggingface.co/o/quants/tree/main", ("gguf", "o/quants")),
        ("https://huggingface.co/o/r#usage", ("hf", "o/r")),
        ("https://huggingface.co/o/r/blob/main/config.json", ("hf", "o/r")),
        ("hf.co/o/r:Q4_K_M", ("gguf", "o/r:Q4_K_M")),
        ("o/r:Q4_K_M", ("gguf", "o/r:Q4_K_M")),
        ("o/r@v1.0:Q4_K_M", ("gguf", "o/r@v1.0:Q4_K_M")),
        ("https://huggingface.co/o/r/blob/dev/q/a.gguf", ("gguf", "o/r@dev/q/a.gguf")),
        ("https://huggingface.co/o/r/tree/dev", ("hf", "o/r@dev")),
        ("hf://o/r", ("hf", "o/r")),
        ("hf://o/r/q8/a.gguf", ("gguf", "o/r/q8/a.gguf")),
        ("o/quants", ("gguf", "o/quants")),
        ("o/r", ("hf", "o/r")),
        ("https://h/a/x.GGUF?token=b", ("gguf", "https://h/a/x.GGUF?token=b")),
        ("gguf:https://h/download/7", ("gguf", "https://h/download/7")),
    ],
)
def test_split(monkeypatch: pytest.MonkeyPatch, source: str, expected: tuple[str, str]) -> None:
    """A source is its scheme and its location; a path is told by its ending, a repository by what the hub says of it."""
    kinds = {"o/quants": "gguf", "o/r": "hf", "o/r@dev": "hf"}
    monkeypatch.setattr("unilect.models.source_hints.scheme_of", kinds.__getitem__)
    assert expected == split(source)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("gpu.example.org/v1", "http://gpu.example.org/v1"),
        ("10.0.0.1:80", "http://10.0.0.1:80"),
        ("ftp://h/x", "`ftp:` is no scheme"),
        ("file:///x", "no such file"),
        ("nothing", "no such file"),
        ("model.bin", "its scheme"),
        ("\n", "no such file"),
    ],
)
def test_split_refuses(source: str, said: str) -> None:
    """What cannot be served is refused with what could be meant."""
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        split(source)


@pytest.mark.parametrize(
    ("argument", "taken", "expected"),
    [
        ("demo:", [], ("demo", "demo:")),
        ("m=demo:", [], ("m", "demo:")),
        ("m=", [], ("m", "")),
        ("m=http://h/v1?a=b", [], ("m", "http://h/v1?a=b")),
        ("http://h/v1?a=b", [], ("default", "http://h/v1?a=b")),
        ("a/b/x y.gguf", [], ("x-y", "a/b/x y.gguf")),
        ("a=b/x.gguf", [], ("a", "b/x.gguf")),
        ("./a=b/x.gguf", [], ("x", "./a=b/x.gguf")),
        ("gguf:org/repo/x.gguf", [], ("x", "gguf:org/repo/x.gguf")),
        ("x.gguf", ["x"], ("x-2", "x.gguf")),
        ("x.gguf", ["x", "x-2"], ("x-3", "x.gguf")),
        ("模型.gguf", [], ("模型", "模型.gguf")),
        ("http://h", ["default"], ("default-2", "http://h")),
        ("a/b:x.GGUF", [], ("b:x", "a/b:x.GGUF")),
        ("org/m=http://h", [], ("org/m", "http://h")),
        ("org/m=demo:", [], ("org/m", "demo:")),
        ("hf:org/m=demo:", [], ("m-demo:", "hf:org/m=demo:")),
        ("https://h/x%20y.gguf?key=a/b", [], ("x-y", "https://h/x%20y.gguf?key=a/b")),
    ],
)
def test_named(argument: str, taken: list[str], expected: tuple[str, str]) -> None:
    """A model that is not named is named after its file, and no name is given twice."""
    assert expected == name_source(argument, taken)


def test_a_file_without_an_ending(tmp_path: Path) -> None:
    """A GGUF file is known by its first bytes, as the blobs of Ollama's folder have no other mark."""
    blob = tmp_path / "sha256-00"
    blob.write_bytes(MODEL.read_bytes()[:64])

    assert ("gguf", str(blob)) == split(str(blob))


def test_what_is_left_out_of_a_url_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The endpoint at the end of an upstream's URL is left out with a warning, which shows no secret of the URL."""
    source = "http://user:pass@127.0.0.1:1/v1/chat/completions?key=secret"

    registry(Config(models={"m": ModelConfig(source=source)}))

    assert "models.m: the source ends in /chat/completions; it is left out" in caplog.text
    assert "pass" not in caplog.text
    assert "secret" not in caplog.text


def test_backends() -> None:
    """Every scheme of the table has an entry point, whose factory can be imported."""
    schemes = plugins.ours(plugins.BACKENDS)

    assert KIND_OF.keys() == schemes.keys() - {"ray"}  # stands for any kind, with `replicas`
    assert all(callable(entry.load()) for entry in schemes.values())


@pytest.mark.parametrize(
    ("keys", "stored", "several"),
    [([], False, False), (["a"], False, True), (["a", "b"], False, True), ([], True, True)],
)
async def test_several_callers(
    tmp_path: Path, keys: list[str], stored: bool, several: bool
) -> None:
    """An engine knows before its start whether the server may have several callers: there is a key in the configuration, or in the store."""
    config = StoreConfig(url=f"sqlite:///{tmp_path}/x.db")
    store = Store(config, {})
    if stored and store.keys is not None:
        await store.keys.create("ann", "AAAA", b"digest")
    await store.aclose()
    made = registry(Config(api_keys=keys, store=config)).get("demo").pool.members[0].backend

    assert isinstance(made, GgufEngine)
    assert ({"cache_ram_mib": 0} if several else {}) == made._isolation.at_start(
        {"cache_ram_mib": None}
    )


async def test_one_limit_for_all_names() -> None:
    """As many requests as a model may have at a time are those of all its names together."""
    tables = {"m": ModelConfig(source="echo:", max_in_flight=1), "p": ModelConfig(base="m")}
    models = registry(Config(models=tables))
    await models.start(["m"])
    first, second = await acquire(models.get("m")), await acquire(models.get("p"))
    running, next_one = (one.backend.generate(chat()) for one in (first, second))
    await anext(running)
    waiting = asyncio.ensure_future(anext(next_one))
    await until(lambda: models.get("m").queue.length == models.get("p").queue.length == 1)
    await running.aclose()
    assert await waiting
    await next_one.aclose()
    first.release()
    second.release()
    await models.aclose()


def test_no_models() -> None:
    """A configuration without models serves the bundled one, at its best temperature."""
    models = registry(Config())

    assert ["demo"] == list(models.models)
    model = models.get(None)
    assert isinstance(model.pool.members[0].backend, GgufEngine)
    assert {"temperature": 0.0} == model.settings.defaults


def test_models() -> None:
    """Each model has its backend and its settings; the first is the default."""
    config = Config(
        models={
            "far": ModelConfig(
                source="http://127.0.0.1:1/v1",
                aliases=["x"],
                defaults={"top_p": 0.5},
                unsupported="report",
            ),
            "near": ModelConfig(source=str(MODEL)),
        }
    )
    models = registry(config)

    far, near = models.models.values()
    assert (far, far, near) == (models.get(None), models.get("x"), models.get("near"))
    assert isinstance(far.pool.members[0].backend, OpenAIUpstream)
    assert isinstance(near.pool.members[0].backend, GgufEngine)
    assert ({"top_p": 0.5}, "report", {}, "refuse") == (
        far.settings.defaults,
        far.settings.unsupported,
        near.settings.defaults,
        near.settings.unsupported,
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"source": "missing.gguf"}, "models.m: "),
        ({"source": "http://"}, "models.m: "),
        ({"source": "nothing"}, "nothing"),
        ({"context": 100_000}, "models.m: context"),
        ({"lora": ["missing.gguf"]}, "models.m: "),
        *(
            (
                {"source": source, "lora": [f"x={scale}"]},
                "models.m: lora: expected a scale from -100 to 100",
            )
            for source in ("demo:", "gguf:org/repo/x.gguf", "hf:org/name")
            for scale in ("nan", "inf", "-1e400")
        ),
        ({"mmproj": "missing.gguf"}, "models.m: "),
        ({"chat_template": "missing.jinja"}, "models.m: chat_template"),
        ({"defaults": {"nonsense": 1}}, "models.m.defaults.nonsense"),
        ({"defaults": {"temperature": 3}}, "models.m.defaults.temperature"),
        ({"defaults": {"messages": []}}, "models.m.defaults.messages"),
        ({"defaults": {"model": "x"}}, "models.m.defaults.model"),
        ({"defaults": {"raw_fields": {}}}, "models.m.defaults.raw_fields"),
        ({"source": "http://h", "api_key": "a\nb"}, "models.m: "),
    ],
)
def test_mistakes(settings: dict[str, Any], said: str) -> None:
    """A mistake in a model's table names the model, before anything is started."""
    with pytest.raises(ConfigError) as raised:
        registry(Config(models={"m": ModelConfig(**settings)}))

    assert said in str(raised.value)


def test_a_damaged_file(tmp_path: Path) -> None:
    """A GGUF file that is cut off is refused before anything is started."""
    path = tmp_path / "x.gguf"
    shutil.copy(MODEL, path)
    with path.open("r+b") as file:
        file.truncate(5000)

    with pytest.raises(ConfigError, match=r"x\.gguf"):
        registry(Config(models={"m": ModelConfig(source=str(path))}))


def test_models_of_transformers_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers is not installed, a folder says what to install."""
    monkeypatch.setattr("unilect.engines.transformers.engine.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"Install them with `pip install '\S+\[transformers\]'`"):
        registry(Config(models={"m": ModelConfig(source=str(FOLDER / "hf"))}))


def test_models_of_one_folder_share_the_processor_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models with adapters on one base are one engine, and get the threads of one."""
    monkeypatch.setattr("unilect.engines.transformers.engine.find_spec", lambda name: True)
    monkeypatch.setattr("unilect.models.sources.cores", lambda: 5)
    source = str(FOLDER / "hf")
    lora = [str(FOLDER / "lora-pirate")]

    models = registry(
        Config(models={"a": ModelConfig(source=source), "b": ModelConfig(source=source, lora=lora)})
    )

    one, other = (models.get(name).pool.members[0].backend for name in ("a", "b"))
    assert one._server is other._server  # type: ignore[attr-defined]
    assert 4 == one._server.settings["threads"]  # type: ignore[attr-defined]


def test_folders_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is neither here nor on the hub is told."""
    monkeypatch.setattr("unilect.engines.transformers.engine.find_spec", lambda name: True)

    with pytest.raises(ConfigError, match="no such folder"):
        registry(Config(models={"m": ModelConfig(source="hf:./nothing/here")}))


def test_entry_points_of_an_older_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that the code has and the installed package does not is told with what to install."""
    monkeypatch.setattr(plugins, "ours", lambda group: {})
    config = ModelConfig(command="true --port {port}")
    with pytest.raises(ConfigError, match=r"models\.m: .*`command`.* Install `unilect` again"):
        backend(spec_of("m", "", config))


def test_beside_a_pinned_model(tmp_path: Path) -> None:
    """What nobody has set of a model is made to fit beside those that are pinned, wherever these stand, and it is refused for nothing that it has chosen itself."""
    path = shaped_gguf.make(tmp_path / "m.gguf", "llama")
    shown = {}
    for pin in (True, False):
        pinned = ModelConfig(source=str(path), context=2048, parallel=1, pin=pin)
        models = {"open": ModelConfig(source=str(path), load="demand"), "pinned": pinned}
        found = registry(Config(models=models, memory="480MiB"))
        assert found.residency is not None
        seats = {name: found.residency.take(model) for name, model in found.models.items()}
        assert seats["open"] is not None
        shown[pin] = found.models["open"].slots, found.residency.account.can_fit(seats["open"])

    assert ["open", "pinned"] == [*seats]
    assert {True: (2, True), False: (4, True)} == shown
