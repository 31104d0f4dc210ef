"""Tests of unilect.models.discovery, in front of a scripted server."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.backends.engine import answer as whole
from support.backends.engine import chat
from support.backends.fastchat import fake_fastchat
from support.backends.leases import acquire
from support.backends.scripted import HELLO, Exchange, answer, says, scripted, stream_of
from support.servers.appserver import serving_models, upstream
from unilect.config.model import Price
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import ConfigError, ModelNotFound
from unilect.demo import MODEL
from unilect.models import discovery, sources
from unilect.models.discovery import Discovery
from unilect.models.model import Model
from unilect.models.registry import Registry


class Listing:
    """A server's list of models, which a test changes."""

    def __init__(self, *names: Any) -> None:
        self.names = list(names)
        self.well = True

    async def __call__(self, exchange: Exchange) -> None:
        """Answer with the list."""
        data = [{"id": name} for name in self.names]
        body = msgspec.json.encode({"data": data})
        await exchange.send(answer(body, "200 OK" if self.well else "500 Oops"))
        exchange.close()


def config(url: str, **models: ModelConfig) -> Config:
    """A configuration with all models of a server, and some others."""
    return Config(models={**models, "far": ModelConfig(source=url, model="*", stop=["x"])})


async def look(listing: Any, *changes: Any, **models: ModelConfig) -> list[list[str]]:
    """The registry's models after each of several looks, each after a change."""
    seen = []
    async with scripted(listing) as server:
        given = config(server.url, **models)
        registry = sources.registry(given)
        finder = Discovery(given, registry)
        for change in (lambda: None, *changes):
            change()
            await finder.look()
            seen.append(sorted(registry.models))
        await registry.aclose()
    return seen


async def test_models_come_and_go() -> None:
    """What the server lists is served; what it lists no more is not."""
    listing = Listing("a", "b")

    assert [["a", "b"], ["b", "c"], ["b", "c"]] == await look(
        listing, lambda: setattr(listing, "names", ["b", "c"]), lambda: None
    )


async def test_prices() -> None:
    """A model that is found costs what its table says, a configured one what its own says, and one that is gone nothing."""
    price = Price(prompt=1.0)
    async with scripted(Listing("a")) as server:
        far = ModelConfig(source=server.url, model="*", price=price)
        given = Config(models={"far": far, "b": ModelConfig(source=server.url)})
        registry = sources.registry(given)
        await Discovery(given, registry).look()
        assert (price, None, None) == tuple(map(registry.price, ("a", "b", "c")))
        await registry.aclose()


async def test_a_server_that_is_down_keeps_its_models() -> None:
    """A list that cannot be had changes nothing."""
    listing = Listing("a")

    assert [["a"], ["a"]] == await look(listing, lambda: setattr(listing, "well", False))


async def test_what_is_no_name(caplog: pytest.LogCaptureFixture) -> None:
    """Of a list of which some ids are no texts, or no names, the others are served; each name that cannot be one is told once."""
    listing = Listing("a", 7, None, ["x"], {}, "b", "", "x" * 257, "\x1b[31m")

    assert [["a", "b"], ["a", "b"]] == await look(listing, lambda: None)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert 3 == len(told)
    assert all("is left out: a name has 1 to 256" in line and line.isprintable() for line in told)


async def test_a_server_of_thousands(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a long list so many are served as a table may have, the first ones, which is told once; who is served stays, whatever comes before it."""
    monkeypatch.setattr(discovery, "MAX_MODELS", 3)
    mine, listing = ModelConfig(), Listing("mine", "a", "b", "c", "d")
    seen = await look(
        listing,
        lambda: setattr(listing, "names", ["mine", "z", "y", "a", "x", "b", "c"]),
        lambda: setattr(listing, "names", ["mine", "z", "y", "x", "c"]),
        lambda: setattr(listing, "names", ["mine", "z"]),
        mine=mine,
    )

    assert [list("abc"), list("abc"), list("cyz"), ["z"]] == [
        [name for name in names if name != "mine"] for names in seen
    ]
    assert ["far: its server lists 4 models, of which 3 are served. Configure others by name."] == [
        record.getMessage() for record in caplog.records if record.levelname == "WARNING"
    ]


async def test_others_are_served_while_models_come_and_go() -> None:
    """A long list is taken in, and let go, one model at a time, with a turn for others after each."""
    turns, listing = 0, Listing(*map(str, range(40)))

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with scripted(listing) as server:
        given = config(server.url)
        registry = sources.registry(given)
        finder = Discovery(given, registry)
        busy = asyncio.create_task(others())
        events = list[int]()
        add, forget = registry.add, registry.forget
        registry.add = lambda model: (events.append(turns), add(model))[1]  # type: ignore[method-assign]
        registry.forget = lambda name: (events.append(turns), forget(name))[1]  # type: ignore[method-assign]
        await finder.look()
        listing.names = []
        await finder.look()
        busy.cancel()
        assert [] == list(registry.models)
        await registry.aclose()

    assert (80, 80) == (len(events), len(set(events)))


async def test_a_reload_while_models_come() -> None:
    """A list that is being taken in when its table goes, or changes, is not taken in any further."""
    listing = Listing(*map(str, range(40)))
    async with scripted(listing) as server:
        given = config(server.url)
        registry = sources.registry(given)
        finder = Discovery(given, registry)
        looking, add = asyncio.create_task(finder.look()), registry.add

        def swap_after_ten(model: Model) -> None:
            add(model)
            if len(registry.models) == 10:
                asyncio.get_running_loop().call_soon(finder.change, Config(), {})

        registry.add = swap_after_ten  # type: ignore[method-assign]
        await looking

        assert [] == list(registry.models)
        await registry.aclose()


async def test_a_silent_server_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that never answers is given up after a while, is told once, and keeps its models."""
    listing = Listing("a")

    async def script(exchange: Exchange) -> None:
        if listing.well:
            await listing(exchange)
        await exchange.client_gone()

    def silent() -> None:
        listing.well = False
        monkeypatch.setattr(discovery, "LIST_TIMEOUT_S", 0.01)

    assert [["a"], ["a"], ["a"]] == await look(script, silent, lambda: None)
    assert [
        "far: its models cannot be listed, and are asked for again: its server sent nothing for 0 s"
    ] == [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


async def test_a_flaw_is_not_the_last_look(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails with an error that nobody foresaw is logged and tried again, and the other tables are looked at."""
    looks = dict.fromkeys(("a", "b"), 0)
    again = asyncio.Event()

    async def list_models(table: str, _: ModelConfig) -> list[str]:
        looks[table] += 1
        if table == "b" and looks[table] == 4:
            again.set()
        if table == "a" and looks[table] in (2, 3):
            raise TypeError("a flaw")
        return [f"{table}{looks[table]}"]

    monkeypatch.setattr(discovery, "EVERY_S", 0.001)
    monkeypatch.setattr(sources, "list_models", list_models)
    tables = {name: ModelConfig(source="http://h/v1", model="*") for name in looks}
    registry = sources.registry(Config(models=tables))
    finder = Discovery(Config(models=tables), registry)
    await finder.start()
    await again.wait()
    await finder.look()
    await finder.aclose()

    assert {"a": looks["a"], "b": looks["b"]} == dict.fromkeys("ab", looks["b"])
    assert {f"{name}{count}" for name, count in looks.items()} == set(registry.models)
    assert 2 == sum(record.levelname == "ERROR" for record in caplog.records)
    await registry.aclose()


async def test_a_configured_model_keeps_its_name() -> None:
    """A name of the configuration is not taken over, nor let go when the server drops it."""
    listing = Listing("mine", "theirs")

    assert [["mine", "theirs"], ["mine"]] == await look(
        listing, lambda: setattr(listing, "names", []), mine=ModelConfig()
    )


async def test_the_bundled_model_keeps_its_name() -> None:
    """The bundled model, which a configuration without models serves, stays where a server has listed one of its name before."""
    async with scripted(Listing("demo")) as server:
        given = config(server.url)
        registry = sources.registry(given)
        finder = Discovery(given, registry)
        await finder.look()
        registry.swap(sources.build_models(Config(), registry.checker))
        finder.change(Config(), {})

        assert ["demo"] == list(registry.models)
        await registry.aclose()


async def test_an_alias_is_a_name_too() -> None:
    """A model that is called like an alias of the configuration is not served: the alias stays what it was."""
    mine, listing = ModelConfig(aliases=["theirs"]), Listing("theirs")
    async with scripted(listing) as server:
        given = config(server.url, mine=mine)
        registry = sources.registry(given)
        finder = Discovery(given, registry)
        for names in (["theirs"], []):
            listing.names = names
            await finder.look()
            assert "mine" == registry.get("theirs").name
        await registry.aclose()


async def test_a_model_that_cannot_be_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that the settings do not fit is left out, which is told once, and served once they do; the others go on."""
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    table = ModelConfig(source="", model="*", chat_template=str(template))
    seen = []
    async with fake_fastchat() as fake:
        given = Config(
            models={"far": msgspec.structs.replace(table, source=f"fastchat+{fake.url}")}
        )
        registry = sources.registry(given)
        finder = Discovery(given, registry)
        template.unlink()
        for names in (["a"], ["a"], ["a", "b"], ["a"], []):
            if names == ["a", "b"]:
                template.write_text("{{ messages[0].content }}")
            fake.answers["/list_models"] = {"models": names}
            await finder.look()
            seen.append(sorted(registry.models))
        await registry.aclose()

    assert [[], [], ["a", "b"], ["a"], []] == seen
    assert ["far: its model a is left out"] == [
        record.getMessage().rpartition(": models.a")[0]
        for record in caplog.records
        if record.levelname == "WARNING"
    ]


def test_settings_of_a_table_for_all() -> None:
    """What is wrong in the settings of a table for all models is told at the start, before its server is asked."""
    table = ModelConfig(source="http://127.0.0.1:9/v1", model="*", defaults={"warmth": 1})

    with pytest.raises(ConfigError, match=r"models\.far\.defaults\.warmth"):
        sources.registry(Config(models={"far": table}))


@pytest.mark.parametrize("model", [None, "*"])
def test_a_table_for_all_is_no_fallback(model: str | None) -> None:
    """A table that stands for all models of a server cannot answer for another model, nor for all of another server."""
    mine = ModelConfig(source="http://127.0.0.1:9/v1", model=model, fallback="far")
    with pytest.raises(ConfigError, match=r"models\.mine\.fallback: `far` is no model"):
        sources.registry(config("http://127.0.0.1:9/v1", mine=mine))


@pytest.mark.parametrize("controller", [True, False], ids=["FastChat", "OpenAI"])
async def test_a_model_that_has_just_come(controller: bool) -> None:
    """A name that nobody knows has the servers asked before it is 404, once for all who ask for it at the same time."""
    listing = Listing("a")
    async with fake_fastchat() as fake, scripted(listing) as server, AsyncExitStack() as stack:
        fake.answers["/list_models"] = {"models": ["a"]}
        given = config(f"fastchat+{fake.url}" if controller else server.url)
        registry = sources.registry(given)
        finder = Discovery(given, registry)
        stack.push_async_callback(finder.aclose)
        app = await stack.enter_async_context(serving_models(given, registry))
        await finder.start()
        before = len(fake.asked["/list_models"] if controller else server.requests)
        listing.names.append("new")
        fake.answers["/list_models"] = {"models": ["a", "new"]}
        found = await asyncio.gather(*(app.get(f"/v1/models/{name}") for name in ["new"] * 9))
        missing = await app.get("/v1/models/none")
        asked = len(fake.asked["/list_models"] if controller else server.requests) - before

    assert ([200] * 9, 404) == ([status for status, _ in found], missing[0])
    assert 1 == asked
    if controller:
        assert "/refresh_all_workers" not in fake.asked


async def test_stopping_while_somebody_asks() -> None:
    """Who waits for a look when the server stops is answered, and not broken off."""
    asked, never = asyncio.Event(), asyncio.Event()

    async def silent(exchange: Exchange) -> None:
        asked.set()
        await never.wait()

    async with scripted(silent) as server:
        given = config(server.url)
        registry = sources.registry(given)
        finder = Discovery(given, registry)
        asking = asyncio.create_task(finder.ask())
        await asked.wait()
        await finder.aclose()
        ended = await asyncio.gather(asking, return_exceptions=True)
        await registry.aclose()
        never.set()

    assert [None] == ended


async def test_a_folder_that_vanishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder whose name could be a repository's stays a folder when it is gone; nobody asks the hub for it, and its models stay."""
    monkeypatch.chdir(tmp_path)
    folder = Path("sub/ggufs")
    folder.mkdir(parents=True)
    (folder / "m.gguf").symlink_to(MODEL)
    given = Config(models={"all": ModelConfig(source=str(folder), model="*")})
    registry = sources.registry(given)
    finder = Discovery(given, registry)
    await finder.look()
    asked = list[str]()
    monkeypatch.setattr("unilect.models.source_hints.scheme_of", asked.append)
    folder.rename("sub/away")
    await finder.look()
    await finder.look()

    assert ["m"] == sorted(registry.models)
    assert [] == asked
    assert 1 == caplog.text.count("sub/ggufs: cannot be read")
    await finder.aclose()
    await registry.aclose()


async def test_an_empty_registry_says_so() -> None:
    """Before anything is found a request gets 404, not a failure."""
    with pytest.raises(ModelNotFound, match="Models: none"):
        Registry([]).get(None)


async def test_a_fastchat_controller_lists_its_models() -> None:
    """The models of a controller's workers are served under their own names."""
    async with fake_fastchat() as fake:
        fake.answers["/list_models"] = {"models": ["a", "b"]}
        given = config(f"fastchat+{fake.url}")
        registry = sources.registry(given)
        await Discovery(given, registry).look()
        assert ["a", "b"] == sorted(registry.models)
        await registry.aclose()


async def test_what_runs_goes_on_when_a_model_goes() -> None:
    """A model that is forgotten while it answers is stopped only when the answer has ended."""
    async with scripted(says(stream_of(HELLO))) as server:
        model = Model("m", upstream(server.url))
        registry = Registry([model])
        lease = await acquire(model)
        registry.forget("m")
        assert "Hello" == (await whole(lease.backend.generate(chat()))).choices[0].text
        assert model.stopping is None
        lease.release()
        assert model.stopping is not None
        await model.stopping


@pytest.mark.parametrize(
    "source", ["demo:", ["http://a/v1", "http://b/v1"]], ids=["an engine", "two servers"]
)
def test_all_of_what(source: Any) -> None:
    """`model = "*"` needs one server of many models."""
    with pytest.raises(ConfigError, match="a server of many models"):
        sources.registry(Config(models={"m": ModelConfig(source=source, model="*")}))
