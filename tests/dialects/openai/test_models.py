"""Tests of unilect.dialects.openai.models: what is told about a model; test_app.py has the routes."""

import pytest

from support.backends.engine import made, needs_transformers
from support.backends.llama_server import llama_server
from support.servers.appserver import serving
from unilect.api.backend import Backend, Description
from unilect.api.parameters.rules import ACCEPTED
from unilect.config.server import ModelConfig
from unilect.dialects.openai.models import abilities, card
from unilect.http.client import HttpServer
from unilect.models import sources
from unilect.models.model import Model
from unilect.upstreams.openai.backend import OpenAIUpstream


def backend(source: str) -> Backend:
    """The backend of a source."""
    return sources.model("m", ModelConfig(source=source)).pool.members[0].backend


def model(name: str = "m") -> Model:
    """A model on a server that nobody asks."""
    return Model(
        name,
        OpenAIUpstream(HttpServer("http://127.0.0.1:1"), "theirs"),
        aliases=["gpt-4o"],
        defaults={"temperature": 0.5},
        created=7,
    )


def test_card() -> None:
    """A card has what OpenAI's and FastChat's clients read, and nothing of where the model comes from."""
    assert card(model()) == {
        "id": "m",
        "object": "model",
        "created": 7,
        "owned_by": "unilect",
        "root": "m",
        "parent": None,
        "aliases": ["m", "gpt-4o"],
        "tags": [],
        "meta": dict.fromkeys(("n_ctx", "n_ctx_train", "n_embd", "n_params", "size", "ftype")),
        "permission": [
            {
                "id": "modelperm-62c66a7a5dd70c31466180",
                "object": "model_permission",
                "created": 7,
                "allow_create_engine": False,
                "allow_sampling": True,
                "allow_logprobs": True,
                "allow_search_indices": True,
                "allow_view": True,
                "allow_fine_tuning": False,
                "organization": "*",
                "group": None,
                "is_blocking": False,
            }
        ],
    }


def test_abilities() -> None:
    """The abilities say how each parameter is honoured, and what becomes of unknown ones."""
    told = abilities(model())

    assert (["gpt-4o"], True, True, True, "passed on", "refuse", {"temperature": 0.5}) == (
        told["aliases"],
        told["chat"],
        told["completions"],
        told["embeddings"],
        told["unknown_parameters"],
        told["unsupported_parameters"],
        told["defaults"],
    )
    assert dict.fromkeys(sorted(ACCEPTED), "accepted") == told["parameters"]


@pytest.mark.parametrize(
    ("engine", "weights"),
    [
        pytest.param("gguf", "Q8_0"),
        pytest.param("hf", "bfloat16", marks=needs_transformers),
    ],
)
def test_details(engine: str, weights: str) -> None:
    """What an engine's files say of the model is told before it has been started."""
    told = abilities(Model("m", made(engine)))["details"]

    assert ("llama", weights, 2048) == (told.family, told.quantization, told.context)
    assert pytest.approx(4_000_512, rel=0.01) == told.parameters


async def test_details_of_a_server() -> None:
    """What a server says of its model is told once it is known; of a model of another unilect it is what that one says."""
    async with serving(made("gguf")) as app:
        upstream = backend(f"http://127.0.0.1:{app.port}/v1")
        assert Description() == abilities(Model("m", upstream))["details"]
        await upstream.start()
        assert made("gguf").describe() == abilities(Model("m", upstream))["details"]
        await upstream.aclose()
    with llama_server() as url:
        for source, expected in (
            (f"{url}/v1", Description(None, 4_000_512, "Q8_0", 2048)),
            (f"llamacpp+{url}", Description(quantization="Q8_0")),
        ):
            upstream = backend(source)
            await upstream.start()
            assert expected == abilities(Model("m", upstream))["details"]
            await upstream.aclose()


def test_nothing_of_the_source_is_told() -> None:
    """Neither the card nor the abilities tell a client where the model comes from."""
    told = str(card(model())) + str(abilities(model()))

    assert "127.0.0.1" not in told
    assert "theirs" not in told
    assert ModelConfig().source not in told
