"""Published chat templates as models of both engines, over the whole server: what they are told, and what they answer."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from support.models.published import chat_templates
from support.models.published_table import PAGE, in_page
from support.models.torchside import need
from support.servers.templated import CALLED, SPOKEN, Engines, Model, body_of, serve_all
from unilect.adapt.tools import build_request
from unilect.api.backend import Capabilities
from unilect.api.parameters.rules import honours
from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest
from unilect.demo import FOLDER

need("torch", "transformers")
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]  # the templates may have to be fetched
LEAST = 70
FIREFUNCTION = "fireworks-ai-llama-3-firefunction-v2"
#: Their prompts always begin thoughts, which a random model does not end, before a call that unilect makes up for.
ALWAYS_THINK = {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "llama-cpp-deepseek-r1"}
#: Templates that refuse everything; llama.cpp knows what else the makers of one want to be told.
REFUSED = {("transformers", FIREFUNCTION)}
#: Prompts that differ between the engines, and why.
OTHERS = {
    "Apertus-8B-Instruct": "llama.cpp takes it for a model that does not think",
    "Kimi-K2-Instruct": "transformers' sandbox forbids a method of lists, so its calls are text there",
    "Kimi-K2-Thinking": "the same",
    FIREFUNCTION: "refused by transformers",
    "google-gemma-2-2b-it": "llama.cpp puts one line break behind the system's text",
    "google-gemma-4-31B-it-interleaved": "llama.cpp puts results into the turn of their calls",
    "meetkai-functionary-medium-v3.1": "transformers writes its tools as HTML",
    "mistralai-Ministral-3-14B-Reasoning-2512": "llama.cpp tells earlier thoughts, and empty turns",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """What each template has led to, by engine and name."""
    return asyncio.run(serve_all(tmp_path_factory.mktemp("models")))


def test_every_conversation_is_answered(served: Engines) -> None:
    """Whole on one engine and streamed on the other, at each API; one template refuses all of them in transformers, which is a 400 with its words, and no model is out."""
    refused = set[tuple[str, str]]()
    for engine, models in served.items():
        assert LEAST <= len(models)
        for name, model in models.items():
            assert model.state not in ("out", "failed"), (engine, name)
            for what, (status, text) in (model.prompts | model.answers).items():
                if status == 200:
                    assert '"error":{' not in text.replace(" ", ""), (engine, name, what)
                    continue
                assert 400 == status, (engine, name, what, text)
                if what == "forced" and name in ALWAYS_THINK:
                    continue
                assert "chat template refuses" in json.loads(text)["error"]["message"]
                refused.add((engine, name))

    assert REFUSED == refused


class ByTransformers:
    """A chat template in transformers' own renderer, in the place of ours."""

    def __init__(self, text: str) -> None:
        self._text = text

    def render_turns(self, turns: Any, **names: Any) -> str:
        """The text of a conversation."""
        from transformers.utils.chat_template_utils import render_jinja_template

        names = {"add_generation_prompt": True} | names
        try:
            texts, _ = render_jinja_template([list(turns)], chat_template=self._text, **names)
        except Exception as error:
            raise InvalidRequest(str(error)) from error
        return str(texts[0])


def test_prompts_of_transformers_models(served: Engines) -> None:
    """The prompt of each conversation is what transformers' own renderer makes of it, once it is put as the template takes it."""
    from transformers import AutoTokenizer

    from unilect.engines.transformers.words.prompt_builder import PromptBuilder

    tokenizer, wrong = AutoTokenizer.from_pretrained(FOLDER / "hf"), dict[Any, Any]()
    for name, template in chat_templates().items():
        model = served["transformers"][name]
        reader = PromptBuilder(tokenizer, template, 512, frozenset(), 0)
        vars(reader)["_chat"] = ByTransformers(template)
        for talk in SPOKEN:
            request = msgspec.convert(body_of(talk), ChatRequest)
            expected = None
            with suppress(InvalidRequest):
                expected = reader.render(build_request(request, model.can))
            if expected != model.prompt(talk):
                wrong[name, talk] = expected, model.prompt(talk)

    assert {} == wrong


def test_prompts_of_both_engines(served: Engines) -> None:
    """They are the same, but for a few templates that llama.cpp has its own ways with."""
    differ = set[str]()
    for name, gguf in served["gguf"].items():
        transformers = served["transformers"][name]
        for talk, body in SPOKEN.items():
            if talk == "prefill" or ("tools" in body and unlike(gguf, transformers)):
                continue  # only llama.cpp goes on with a turn
            texts = [
                (one.prompt(talk) or "").replace("<|im_end|>", "</s>")
                for one in (gguf, transformers)
            ]
            if texts[0] != texts[1]:
                differ.add(name)

    assert OTHERS.keys() == differ


def unlike(gguf: Model, transformers: Model) -> bool:
    """True where tools are native on one of the engines only."""
    return honours(gguf.can, "tools") != honours(transformers.can, "tools")


def test_tools(served: Engines) -> None:
    """A tool stands in the prompt wherever tools are native, and elsewhere, too: there unilect writes them."""
    lost = [
        (engine, name, talk)
        for engine, models in served.items()
        for name, model in models.items()
        for talk in ("tools", *CALLED)
        if (prompt := model.prompt(talk)) is not None and "The weather of a city" not in prompt
    ]

    assert [] == lost


def test_calls_are_never_lost(served: Engines) -> None:
    """Earlier calls, their arguments and their results stand in the prompt, with tools and without, each in its turn."""
    lost = [
        (engine, name, talk, word)
        for engine, models in served.items()
        for name, model in models.items()
        for called, words in CALLED.items()
        for talk in (called, f"{called}, no tools")
        if (prompt := model.prompt(talk)) is not None
        for word in words
        if word not in prompt.replace("\\u00f6", "ö")
    ]

    assert [] == lost


def test_a_call_that_must_come(served: Engines) -> None:
    """Every model makes it, whatever its template; where each prompt begins thoughts, they may take all of `max_tokens`."""
    missing = [
        (engine, name, text)
        for engine, models in served.items()
        for name, model in models.items()
        for status, text in [model.answers["forced"]]
        if (status == 200 or name not in ALWAYS_THINK | {FIREFUNCTION})
        and [("ping", {})] != calls_of(json.loads(text))
    ]

    assert [] == missing


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    """The calls of an answer: names and arguments; none of an error."""
    choices = answer.get("choices") or [{"message": {}}]
    calls = [call["function"] for call in choices[0]["message"].get("tool_calls") or ()]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


def test_what_the_engines_know(served: Engines) -> None:
    """Family, thoughts and the names that a template asks for are the same on both; so are tools, unless no family is known or transformers cannot write them."""

    def told(can: Capabilities) -> tuple[Any, ...]:
        return can.tool_form, can.thinking, can.chat, can.template_names

    differ = set[str]()
    for name, gguf in served["gguf"].items():
        transformers = served["transformers"][name]
        assert told(gguf.can) == told(transformers.can), name
        if unlike(gguf, transformers) and gguf.can.tool_form:
            differ.add(name)

    assert {"llama-cpp-deepseek-r1"} == differ


def test_the_table(served: Engines) -> None:
    """The table of published templates in docs/templates.md is what has been found; scripts/models.py makes it."""
    assert in_page(served) == PAGE.read_text()
