"""Tests of unilect.server._examples: each endpoint takes the body that its documentation shows."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from server.test_admin import operated
from server.test_openapi import DOCUMENT
from unilect.demo import MODEL
from unilect.server import _examples as examples


def _posts() -> dict[str, Any]:
    """The media of each endpoint with a body, by its path."""
    return {
        path: methods["post"]["requestBody"]["content"]["application/json"]
        for path, methods in DOCUMENT["paths"].items()
        if "requestBody" in methods.get("post", {})
    }


def test_they_are_sound() -> None:
    """Each example is sound by the schema beside it, and has in it what the request is about."""
    for path, media in _posts().items():
        schema = media["schema"] | {"components": DOCUMENT["components"]}
        Draft202012Validator(schema).validate(media["example"])
        assert media["example"], path


@pytest.mark.heavy
async def test_they_are_taken(tmp_path: Path) -> None:
    """A server with a real model takes each, or says that this model cannot do it; none is told to be invalid."""
    text = f'[models.small]\nsource = "{MODEL}"\ncontext = 256\n'
    refused = dict[str, Any]()
    async with operated(tmp_path, text) as server:
        for path, media in _posts().items():
            body = json.dumps(media["example"]).replace(f'"{examples.MODEL}"', '"small"')
            if "{" in path:
                continue  # of something that has to be there first
            async with server.client.post(f"{server.url}{path}", data=body) as response:
                told = await response.text()
                if response.status not in (200, 501) and "no fill-in-the-middle tokens" not in told:
                    refused[path] = response.status, told

    assert {} == refused
