"""Tests of unilect.discovery: a table that stands for all models of a FastChat controller."""

import asyncio
from typing import Any

import pytest

from appserver import upstream
from fastchat import fake_fastchat
from unilect.config import Config, ModelConfig
from unilect.discovery import Discovery
from unilect.errors import ConfigError
from unilect.registry import Model, Registry
from unilect.requests import ChatRequest, Message
from unilect.sources import registry, stands_for_all


def table(url: str, **fields: Any) -> ModelConfig:
    """A table for the controller at this URL."""
    return ModelConfig(source=f"fastchat+{url}", model="*", **fields)


async def test_models_come_and_go() -> None:
    """Each of the controller's models has its own name and the table's settings, and a name that is taken stays its owner's."""
    own = Model("own", upstream("http://127.0.0.1:1/v1"))
    models = Registry([own])
    async with fake_fastchat() as fake:
        fake.answers["/list_models"] = {"models": ["a", "own"]}
        discovery = Discovery(models, "x", table(fake.url, defaults={"top_p": 0.5}))
        await discovery.look()
        assert (["own", "a"], own) == (list(models.models), models.get("own"))
        request = models.get("a").with_defaults(ChatRequest(messages=[Message("user", "Hi")]))
        assert 0.5 == request.top_p
        await models.get("a").start()

        fake.answers["/list_models"] = {"models": ["b"]}
        await discovery.look()
        assert ["own", "b"] == list(models.models)
    await discovery.look()
    assert ["own", "b"] == list(models.models)
    await models.aclose()


async def test_it_goes_on_looking() -> None:
    """A model that a worker brings later is served, and nobody looks any more once it is closed."""
    models = Registry([])
    async with fake_fastchat() as fake:
        fake.answers["/list_models"] = {"models": []}
        discovery = Discovery(models, "x", table(fake.url), look_s=0.001)
        await discovery.start()
        assert {} == models.models
        fake.answers["/list_models"] = {"models": ["late"]}
        async with asyncio.timeout(10):
            while not models.models:
                await asyncio.sleep(0)
        await discovery.aclose()
    assert ["late"] == list(models.models)


def test_it_is_no_model_itself() -> None:
    """The table is no model, and is checked like one."""
    config = Config(models={"x": table("http://127.0.0.1:1"), "demo": ModelConfig()})

    assert ["demo"] == list(registry(config).models)
    for wrong in (
        ModelConfig(source="http://a/v1", model="*"),
        ModelConfig(source=["fastchat+http://a", "fastchat+http://b"], model="*"),
        table("http://a", defaults={"nothing": 1}),
    ):
        with pytest.raises(ConfigError, match="models"):
            stands_for_all("x", wrong)
