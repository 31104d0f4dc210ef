"""Tests of unilect.dialects.openai._models: what is told about a model; test_app.py has the routes."""

from unilect.config.server import ModelConfig
from unilect.dialects.openai._models import abilities, card
from unilect.http.client import HttpServer
from unilect.parameters.rules import ACCEPTED
from unilect.routing.registry import Model
from unilect.upstreams.openai.backend import OpenAIUpstream


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


def test_nothing_of_the_source_is_told() -> None:
    """Neither the card nor the abilities tell a client where the model comes from."""
    told = str(card(model())) + str(abilities(model()))

    assert "127.0.0.1" not in told
    assert "theirs" not in told
    assert ModelConfig().source not in told
