"""Tests of unilect.engines.gguf._kept: conversations that are kept while the engine is stopped, with llama.cpp's own counts of what it reads."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import made
from support.clients.callers import of
from support.models import tiny_gguf
from unilect.config.server import ModelConfig
from unilect.core.errors import BackendUnavailable, ConfigError, EngineDied, InvalidRequest
from unilect.core.events import Fold
from unilect.core.requests import ChatRequest, LoraScale, Message
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf import _kept, _slot_files
from unilect.engines.gguf._kept import KeptConversations
from unilect.engines.gguf._kept_files import Given, Kept
from unilect.engines.gguf._slots import Slots
from unilect.engines.gguf.engine import GgufEngine
from unilect.runtime.tasks import Tasks

STORY = [Message("user", "Tell me a story of a cat and a dog. " * 20)]
OTHER = [Message("user", "Is the sun a day or a night? " * 20)]
NEW = 30  # tokens that a next turn has more than what was read, at most


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the conversations of all models."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "unilect" / "conversations"


def files(folder: Path) -> list[Path]:
    """What is kept, the least recently used first."""
    return sorted(folder.glob("*/*"), key=lambda file: file.stat().st_mtime)


@asynccontextmanager
async def running(model: GgufEngine) -> AsyncIterator[GgufEngine]:
    """The same engine from its start to its stop."""
    try:
        await model.start()
        yield model
    finally:
        await model.aclose()


def keeping(path: Path = MODEL, several: bool = True, **config: Any) -> GgufEngine:
    """An engine that keeps conversations."""
    settings = {"keep_conversations": "1GiB", "parallel": 2, "context": 1024} | config
    return GgufEngine("m", path, ModelConfig(**settings), several_callers=several)


async def say(
    model: GgufEngine, messages: list[Message], caller: str = "ada", **fields: Any
) -> tuple[str, int]:
    """The answer's text, and how many tokens were read for it."""
    request, folding = ChatRequest(messages=messages, max_tokens=8, temperature=0, **fields), Fold()
    with of(caller):
        async for batch in model.generate(request):
            folding.add(batch)
    told = folding.answer()
    return told.choices[0].text or "", told.usage.prompt_tokens - (told.usage.cached_tokens or 0)


def goes_on(messages: list[Message], text: str) -> list[Message]:
    """The next turn of a conversation."""
    return [*messages, Message("assistant", text), Message("user", "And then?")]


@pytest.mark.parametrize("several", [True, pytest.param(False, marks=pytest.mark.heavy)])
async def test_a_stop_between_two_turns(several: bool) -> None:
    """Two conversations go on after a stop, and after another one, as if nothing had been: only what is new is read, and the text is the same."""
    callers = ("ada", "bob") if several else ("anonymous", "anonymous")
    whole: list[list[tuple[str, int]]] = []
    for stops in (False, True):
        turns = {"ada": STORY, "bob": OTHER}
        model, told = keeping(several=several), list[tuple[str, int]]()
        async with running(model):
            for turn in range(3):
                for name, caller in zip(turns, callers, strict=True):
                    text, read = await say(model, turns[name], caller)
                    turns[name] = goes_on(turns[name], text)
                    told.append((text, read if turn else NEW))
                if stops:
                    await model.aclose()
                    await model.start()
            theirs = [] if not stops else [await say(model, turns["ada"], "bob")]
        whole.append(told)

    assert [text for text, _ in whole[0]] == [text for text, _ in whole[1]]
    assert NEW >= max(read for _, read in whole[1])
    assert theirs[0][1] > 100


async def test_a_restart_of_the_server(folder: Path) -> None:
    """Another engine of the same model and settings goes on; the files are their user's alone, and the last turn alone is kept."""
    async with running(keeping()) as model:
        text, total = await say(model, STORY)
    modes = [each.stat().st_mode & 0o777 for each in (folder, *folder.iterdir(), *files(folder))]
    async with running(keeping()) as model:
        theirs = await say(model, STORY, "bob")
        mine = await say(model, goes_on(STORY, text))
    after = [file.name.split("-")[0] for file in files(folder)]

    assert [0o700, 0o700, 0o600] == modes
    assert total == theirs[1] > 100
    assert NEW >= mine[1]
    assert len(set(after)) == len(after) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"cache_type_k": "q8_0"},
        pytest.param({"context": 512}, marks=pytest.mark.heavy),
        pytest.param({"lora": [str(FOLDER / "lora-pirate.gguf")]}, marks=pytest.mark.heavy),
    ],
)
async def test_other_settings(change: dict[str, Any], folder: Path) -> None:
    """What other settings have made is not read, and is there for those again."""
    async with running(keeping()) as model:
        await say(model, STORY)
    [before] = files(folder)
    async with running(keeping(**change)) as model:
        read = (await say(model, STORY))[1]

    assert read > 100
    assert 2 == len(files(folder))
    assert before in files(folder)


@pytest.mark.heavy
async def test_another_file_of_the_same_name(tmp_path: Path) -> None:
    """What was read with a file is not there for another one in its place."""
    path, read = tmp_path / "m.gguf", []
    for _ in range(2):
        path.unlink(missing_ok=True)
        path.write_bytes(MODEL.read_bytes())
        async with running(keeping(path)) as model:
            read.append((await say(model, STORY))[1])

    assert read[0] == read[1] > 100


@pytest.mark.heavy
async def test_broken_files(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file with another content, a part of one, and one that is gone: the prompt is read, with one line in the log, and the answer is the same."""
    async with running(keeping()) as model:
        text, total = await say(model, STORY)
        for harm in (lambda data: data[:-9] + b"x" * 9, lambda data: data[:100], None):
            await model.aclose()
            [file] = files(folder)
            if harm is None:
                file.unlink()
            else:
                file.write_bytes(harm(file.read_bytes()))
                os.utime(file, (1, 1))
            caplog.clear()
            await model.start()
            if harm is None:
                caplog.clear()
                assert [] == files(folder)
            assert (text, total) == await say(model, STORY)
            lines = [one for one in caplog.messages if "cannot be used, and is read anew" in one]
            assert (harm is not None) == len(lines)


@pytest.mark.heavy
async def test_the_space(folder: Path) -> None:
    """Those that were not used for longest go first."""
    async with running(keeping()) as model:
        await say(model, STORY)
    size = files(folder)[0].stat().st_size
    async with running(keeping(keep_conversations=str(int(2.5 * size)), parallel=1)) as model:
        for name in ("bob", "ada", "cy", "ada"):
            await say(model, STORY, name)
            await model.aclose()
            await model.start()
        read = {name: (await say(model, STORY, name))[1] for name in ("cy", "ada", "bob")}

    assert NEW >= max(read["ada"], read["cy"])
    assert read["bob"] > 100


async def test_it_is_switched_off(folder: Path) -> None:
    """An engine that keeps nothing removes what was kept, and one that is still to stop keeps nothing more."""
    async with running(keeping()) as model:
        await say(model, STORY)
        async with running(keeping(keep_conversations=None)):
            pass
        await say(model, STORY)

    assert [] == [*folder.iterdir()]


@pytest.mark.heavy
async def test_what_a_killed_server_has_left(folder: Path) -> None:
    """A file that was being written is nobody's conversation, and is removed once it is old."""
    async with running(keeping()) as model:
        await say(model, STORY)
    [file] = files(folder)
    old, young = file.with_name("a.part"), file.with_name("b.part")
    for part in (old, young):
        part.write_bytes(file.read_bytes()[:1000])
    os.utime(old, (time.time() - 3600,) * 2)
    async with running(keeping()) as model:
        read = (await say(model, STORY))[1]

    assert NEW >= read
    assert not old.exists()
    assert young.exists()


async def test_an_engine_that_hangs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop does not wait for a child that does not save, and leaves nothing."""
    monkeypatch.setattr(_kept, "STOP_S", 0.05)
    model = keeping()
    model.children[0]._stop_timeout_s = 0.05
    async with running(model):
        await say(model, STORY)
        os.kill(model.children[0].pid or 0, signal.SIGSTOP)

    assert "stopped" == model.children[0].state
    assert [] == files(folder)
    assert "not every conversation is kept: it takes too long" in caplog.text


@pytest.mark.heavy
async def test_a_window(tmp_path: Path) -> None:
    """What a model with windows has read, with its checkpoints, is there again."""
    async with running(keeping(tiny_gguf.make_windowed(tmp_path / "w.gguf"), parallel=1)) as model:
        await say(model, STORY)
        before = await say(model, goes_on(STORY, "the cat"))
        await model.aclose()
        await model.start()
        after = await say(model, goes_on(goes_on(STORY, "the cat"), before[0]))

    assert NEW + 64 >= after[1]


@pytest.mark.heavy
async def test_prompts_with_scales_of_their_own(folder: Path) -> None:
    """A conversation for which a request has set the scales of adapters is not kept."""
    async with running(keeping(lora=[str(FOLDER / "lora-pirate.gguf")])) as model:
        await say(model, STORY, lora=[LoraScale(0, 0.5)])

    assert [] == files(folder)


def test_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside a projector, and without a folder of the user's, it is refused at once."""
    for name in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name)
    projector = tiny_gguf.make_projector(tmp_path / "p.gguf")
    with pytest.raises(ConfigError, match="neither HOME nor XDG_DATA_HOME"):
        made("gguf", keep_conversations="1GiB")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="of a model with `mmproj`"):
        made("gguf", keep_conversations="1GiB", mmproj=str(projector))


def kept_of(path: Path = MODEL, space: str = "1GiB") -> KeptConversations:
    """The conversations of a model, without its engine."""
    return KeptConversations("m", path, ModelConfig(keep_conversations=space), writes=True)


async def death(model: GgufEngine) -> None:
    """The engine is killed, and back."""
    child = model.children[0]
    life = child.starts
    os.kill(child.pid or 0, signal.SIGKILL)
    assert await child.has_ended(life)
    await model.check()


@pytest.mark.heavy
@pytest.mark.parametrize("several", [True, False])
async def test_a_crash(several: bool, folder: Path) -> None:
    """After a crash nothing is saved of slots that are empty; the kept conversation goes on, and is kept anew."""
    caller = "ada" if several else "anonymous"
    async with running(keeping(several=several, cache_ram_mib=0)) as model:
        turn = goes_on(STORY, (await say(model, STORY, caller))[0])
        await model.aclose()
        before = files(folder)
        await model.start()
        await say(model, turn, caller)
        await death(model)
        await model.aclose()
        assert before == files(folder)
        await model.start()
        await death(model)
        read = (await say(model, turn, caller))[1]

    assert NEW >= read
    assert 1 == len({*files(folder)} - {*before})


@pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.heavy)])
async def test_an_engine_that_ends_while_it_is_filled(
    how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kept conversation stays for the next start."""
    stops = Tasks()
    async with running(keeping()) as model:
        turn = goes_on(STORY, (await say(model, STORY))[0])
        await model.aclose()
        await model.start()

        async def end_first(*args: Any) -> dict[str, Any]:
            child = model.children[0]
            os.kill(child.pid or 0, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
            if how == "stopped":
                stops.start("the stop", model.aclose())
            return await _slot_files.restore(*args)

        monkeypatch.setattr(_kept, "restore", end_first)
        with pytest.raises((EngineDied, BackendUnavailable)):
            await say(model, turn)
        assert 1 == len(files(folder))
        await stops.aclose()
        await model.aclose()
        monkeypatch.undo()
        monkeypatch.setenv("XDG_DATA_HOME", str(folder.parent.parent))
        await model.start()
        assert NEW >= (await say(model, turn))[1]


async def test_a_request_that_is_refused() -> None:
    """It does not take the place of the conversation in its slot; and a slot that holds nothing is not saved."""
    async with running(keeping(parallel=1)) as model:
        text, _ = await say(model, STORY)
        with pytest.raises(InvalidRequest):
            await say(model, [Message("user", "x y z " * 3000)])
        await model.aclose()
        await model.start()
        async with model._generator.connect_apart() as server:
            assert 0 == await model._kept._save(server, 0, "a" * 32, Given(9, 9, 0.0, None))
        read = (await say(model, goes_on(STORY, text)))[1]

    assert NEW >= read


async def test_one_conversation_in_two_slots(folder: Path) -> None:
    """It is kept once."""
    async with running(keeping()) as model:
        await asyncio.gather(*(say(model, STORY, seed=seed) for seed in (1, 2)))

    assert 1 == len(files(folder))


async def test_another_later_part_of_a_model(tmp_path: Path) -> None:
    """What was read with it is not there for the model with another one."""
    first, later = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(b"x")
    owners = []
    for data in (b"x", b"xy"):
        later.write_bytes(data)
        kept = kept_of(first)
        await kept.open("b1", [])
        owners.append(kept._owner("ada"))

    assert owners[0] != owners[1]


async def test_less_space_than_before(folder: Path) -> None:
    """What has no room any more is removed at the start."""
    kept = kept_of()
    await kept.open("b1", [])
    [own] = folder.iterdir()
    for number, size in enumerate((600, 500)):
        one = own / Kept(f"{number}" * 32, 1, 1, size, 1).name
        one.write_bytes(b"x" * size)
        os.utime(one, (number, number))
    await kept_of(space="1000").open("b1", [])

    assert [500] == [file.stat().st_size for file in files(folder)]


async def test_a_folder_that_others_can_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is made private where it is ours; nothing is kept in another user's, with one warning."""
    kept = kept_of()
    await kept.open("b1", [])
    [own] = folder.iterdir()
    for each in (folder, own):
        each.chmod(0o777)
    await kept.open("b1", [])
    assert [0o700, 0o700] == [each.stat().st_mode & 0o777 for each in (folder, own)]
    assert kept._state
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    await kept.open("b1", [])

    assert not kept._state
    assert 1 == caplog.text.count("belongs to another user")


def test_a_model_that_writes_nothing() -> None:
    """A model for embeddings has no conversations, and is told so."""
    with pytest.raises(ConfigError, match="writes no text"):
        KeptConversations("m", MODEL, ModelConfig(keep_conversations="1GiB"), writes=False)


async def test_slots_that_lack_a_beginning() -> None:
    """A slot lacks what it does not hold; one whose content llama.cpp would move into its cache is left alone."""
    slots = Slots(1)
    lacks = []
    for kept in (False, True):
        slots.kept = kept
        for prompt in (b"a" * 1000, b"a" * 2000, b"b" * 2000):
            slot = await slots.acquire(prompt)
            lacks.append(slots.lacks(slot, len(prompt) - 2))
            slots.release(slot)

    assert [True, True, True] == lacks[:3]
    assert [False, False, False] == lacks[3:]
