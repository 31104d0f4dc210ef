"""Logs, metrics and the admin API, with a source whose text is no URL."""

import logging
from pathlib import Path

import aiohttp
import pytest

from support.servers.reloading import Reloadable
from unilect.runtime.logs import LogFormat, LogSink, SinkHandler

HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("form", ["console", "json"])
async def test_logs_and_a_source_that_is_no_url(tmp_path: Path, form: LogFormat) -> None:
    """A source that no parser of URLs takes is logged as any other, and ends neither the log, nor metrics, pages or the admin API."""
    file, written = tmp_path / "unilect.toml", list[bytes]()
    file.write_text(
        "port = 0\n[admin]\nlisten = '127.0.0.1:0'\napi_keys = ['sk-admin']\n[models.odd]\nsource = 'echo://me:pw@[x/y'\n"
    )

    def write(data: bytes) -> int:
        written.append(data)
        return len(data)

    handler, root = SinkHandler(LogSink(write, batch_s=0, form=form)), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        server = Reloadable(file)
        async with server.running(), aiohttp.ClientSession() as client:
            admin = await server.listener.listen_for_admin(server.reloader)
            body = {"model": "odd", "messages": HI}
            statuses = [(await client.post(f"{server.url}/v1/chat/completions", json=body)).status]
            for path in ("/metrics", "/", "/v1/models"):
                response = await client.get(server.url + path, headers={"Accept": "text/html"})
                statuses.append(response.status)
            headers = {"Authorization": "Bearer sk-admin"}
            statuses.append((await client.get(f"{admin}/models", headers=headers)).status)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()

    log = b"".join(written).decode()
    assert [200] * 5 == statuses
    assert "echo://***@[x" in log
    assert "pw" not in log
    assert all(path in log for path in ("/metrics", "/v1/models", "/models"))
