"""Reloads with each of: files that are no configuration, a watch, responses in the background."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.backends.scripted import Exchange, scripted, waits
from support.common.waiting import until
from support.servers.reloading import Reloadable
from unilect.core.errors import ReloadRefused

TOP = "port = 0\n[store]\nurl = 'sqlite://'\n"
MODEL = "[models.m]\nsource = 'echo:'\n"


def put(file: Path, make: Callable[[Path], Any]) -> None:
    """Put something else in a file's place."""
    new = file.with_suffix(".other")
    make(new)
    os.replace(new, file)


#: What is in the file's place, and what is told.
HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "digits": (lambda new: new.write_text("\nport = " + "9" * 5000), "unilect.toml:2: cannot be read: the number"),
    "dots": (lambda new: new.write_text("a" + ".a" * 50_000 + " = 1"), "unilect.toml:1: cannot be read: it is nested too deeply"),
    "brackets": (lambda new: new.write_text("a = " + "[" * 50_000), "unilect.toml:1: cannot be read: it is nested too deeply"),
    "a pipe": (os.mkfifo, "unilect.toml: cannot be read (it is no regular file)"),
    "a device": (lambda new: new.symlink_to("/dev/zero"), "unilect.toml: cannot be read (it is no regular file)"),
    "a device as template": (lambda new: new.write_text(TOP + MODEL.replace("echo:", "http://127.0.0.1:1") + "chat_template = '/dev/zero'\n"), "chat_template"),
    "no text": (lambda new: new.write_bytes(b"\xff" * 5000), "it is not UTF-8 text"),
}  # fmt: skip


async def test_hostile_files(tmp_path: Path) -> None:
    """Whatever is in the file's place, a reload is refused with 400 and the place, and the server answers as before."""
    file = tmp_path / "unilect.toml"
    file.write_text(TOP + MODEL)
    server = Reloadable(file)
    async with server.running(), aiohttp.ClientSession() as client:
        for name, (make, told) in HOSTILE.items():
            put(file, make)
            with pytest.raises(ReloadRefused) as refused:
                await server.reloader.reload("a test")
            assert (400, "reload_refused") == (refused.value.status, refused.value.code)
            assert told in refused.value.message, name
            assert refused.value.message.endswith("Nothing has changed.")
            async with client.get(f"{server.url}/v1/models") as got:
                assert ["m"] == [model["id"] for model in (await got.json())["data"]]


async def test_a_watch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A watched file that is no configuration for a time is told in the log, without a traceback, and what comes after it is used."""
    file = tmp_path / "unilect.toml"
    watched = TOP.replace("[store]", "watch = true\n[store]")
    file.write_text(watched + MODEL)
    server = Reloadable(file, look_s=0.01)
    async with server.running():
        server.reloader.begin()
        for name in ("digits", "a device"):
            before = server.reads
            put(file, HOSTILE[name][0])
            await until(lambda before=before: server.reads > before)  # type: ignore[misc]
        server.write(watched + MODEL.replace("models.m", "models.other"))
        await until(lambda: "other" in server.registry.models)

    assert "cannot be read: the number" in caplog.text
    assert "it is no regular file" in caplog.text
    assert "Traceback" not in caplog.text


async def test_responses_in_the_background(tmp_path: Path) -> None:
    """A response in the background goes on over a reload that adds a model, and over one that takes its own away, and its end is stored."""
    go_on, chats = asyncio.Event(), list[Exchange]()
    async with scripted(waits(go_on, chats)) as upstream:
        model = f"[models.m]\nsource = '{upstream.url}'\n"
        file = tmp_path / "unilect.toml"
        file.write_text(TOP + model)
        server = Reloadable(file)
        async with server.running(), aiohttp.ClientSession() as client:
            body = {"model": "m", "input": "x", "background": True}
            async with client.post(f"{server.url}/v1/responses", json=body) as got:
                found = await got.json()
            await until(lambda: chats)
            other = MODEL.replace("models.m", "models.other")
            for text in (TOP + model + other, TOP + other):
                server.write(text)
                await server.reloader.reload("a test")
            assert ["other"] == list(server.registry.models)
            go_on.set()
            while found["status"] in ("queued", "in_progress"):
                async with client.get(f"{server.url}/v1/responses/{found['id']}") as got:
                    found = await got.json()

    assert ("completed", "Hello") == (found["status"], found["output"][0]["content"][0]["text"])
