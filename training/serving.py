"""
The shipped GGUF behind xllamacpp's own HTTP server, in this process.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp


class Served:
    """
    A running server with one model.

    Args:
        model: the GGUF file
        adapters: GGUF adapters, all at scale 0 until a request asks for one
    """

    def __init__(self, model: Path, adapters: tuple[Path, ...] = ()) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx = 2048
        params.n_parallel = 1
        params.port = 0
        params.use_jinja = True
        params.verbosity = 1
        params.cpuparams.n_threads = 1
        params.cpuparams_batch.n_threads = 1
        if adapters:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(a), 0.0) for a in adapters]
        self.server = xllamacpp.Server(params)
        self.base = self.server.listening_address

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send JSON, get JSON."""
        data = json.dumps(body).encode()
        ask = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask, timeout=120) as answer:
            return json.load(answer)

    def chat(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Ask greedily; return the first choice."""
        body = {"messages": messages, "temperature": 0, "max_tokens": 300, **more}
        choice: dict[str, Any] = self.post("/v1/chat/completions", body)["choices"][0]
        return choice
