"""Published chat templates: what unilect makes of a conversation is what transformers makes of it."""

import copy
from typing import Any

import pytest

from support.models.published import chat_templates
from support.models.talks import TALKS
from support.models.torchside import need
from unilect.core.errors import ConfigError, InvalidRequest
from unilect.templates.chat import ChatTemplate

need("torch", "transformers")
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]  # the templates may have to be fetched
LIMIT_S = 10.0  # of the processor; a busy machine must not decide
LEAST = 70


@pytest.mark.parametrize("talk", TALKS)
def test_a_conversation(talk: str) -> None:
    """Every published template makes the text of it that it has in transformers, or refuses it with the same words."""
    templates = chat_templates()
    others = {
        name: (theirs, ours)
        for name, text in templates.items()
        if (theirs := rendered_by_transformers(text, talk)) != (ours := rendered(text, talk))
    }

    assert {} == others
    assert LEAST <= len(templates)


def names_of(talk: str) -> dict[str, Any]:
    """A conversation of its own, with what goes with it."""
    given = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    return given | copy.deepcopy(TALKS[talk])


def rendered(template: str, talk: str) -> str:
    """The text that unilect makes, or the words with which it refuses."""
    names = names_of(talk)
    try:
        return ChatTemplate(template, limit_s=LIMIT_S).render_turns(names.pop("messages"), **names)
    except (InvalidRequest, ConfigError) as error:
        return str(error.__cause__)


def rendered_by_transformers(template: str, talk: str) -> str:
    """As `rendered`, of transformers."""
    from transformers.utils.chat_template_utils import render_jinja_template

    names = names_of(talk)
    conversations = [names.pop("messages")]
    try:
        texts, _ = render_jinja_template(conversations, chat_template=template, **names)
        text: str = texts[0]
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return str(error)
    return text
