"""Answers of a real model, SmolLM2-135M-Instruct, to published questions: both engines give those of the programs that they run."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from support.backends.llama_server import llama_server
from support.common import environments
from support.models.published import questions, smollm2_folder
from support.models.torchside import need
from support.servers.serving import KEY, serve

pytestmark = [pytest.mark.heavy, environments.may_install]
TOKENS = 24
AT_ONCE = 8
#: A few questions of different tasks; `UNILECT_TEST_QUESTIONS=50` asks so many.
COUNT = int(os.environ.get("UNILECT_TEST_QUESTIONS", "4"))
CONFIG = """\
[models.gguf]
source = "{file}"
parallel = 2
context = 512
threads = 1
[models.hf]
source = "hf:{folder}"
parallel = 8
context = 512
threads = 1
"""


@pytest.fixture(scope="module")
def asked() -> list[str]:
    """The questions."""
    found = questions()
    return found[:: len(found) // COUNT][:COUNT]


@pytest.fixture(scope="module")
def ours() -> Iterator[OpenAI]:
    """A client of the model on both engines."""
    need("torch", "transformers")
    config = CONFIG.format(file=environments.smollm2(), folder=smollm2_folder())
    with serve("--api-key", KEY, config=config) as server:
        yield OpenAI(base_url=server.url, api_key=KEY, max_retries=0)


def chat(client: OpenAI, text: str, model: str, **more: Any) -> Any:
    """Ask a question, greedily."""
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(
        model=model, messages=messages, max_tokens=TOKENS, temperature=0, **more
    )


def complete(client: OpenAI, text: str, model: str, **more: Any) -> Any:
    """Have a question's text go on, greedily."""
    return client.completions.create(
        model=model, prompt=f"Q: {text}\nA:", max_tokens=TOKENS, temperature=0, **more
    )


def told(answer: Any) -> tuple[str, str, int]:
    """Return an answer's text, its end and its number of tokens."""
    [choice] = answer.choices
    text = choice.message.content if hasattr(choice, "message") else choice.text
    return text, choice.finish_reason, answer.usage.completion_tokens


def streamed(answer: Any) -> tuple[str, str, int]:
    """Return the same of a streamed answer."""
    text, finish, tokens = "", "", 0
    for chunk in answer:
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            piece = choice.delta.content if hasattr(choice, "delta") else choice.text
            text, finish = text + (piece or ""), choice.finish_reason or finish
    return text, finish, tokens


@pytest.fixture(scope="module")
def theirs() -> Iterator[OpenAI]:
    """A client of llama.cpp's own server."""
    with llama_server(environments.smollm2()) as url:
        yield OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


@pytest.mark.parametrize("ask", [chat, complete])
def test_llama_cpp(ours: OpenAI, theirs: OpenAI, asked: list[str], ask: Any) -> None:
    """The GGUF engine's answer is that of llama.cpp's server, and the same streamed."""
    # what is read again instead of being kept is read in other steps, and their sums differ a little
    fresh = {"extra_body": {"cache_prompt": False}}
    usage = fresh | {"stream": True, "stream_options": {"include_usage": True}}
    expected = [told(ask(theirs, text, "m", **fresh)) for text in asked]

    assert expected == [told(ask(ours, text, "gguf", **fresh)) for text in asked]
    assert expected == [streamed(ask(ours, text, "gguf", **usage)) for text in asked]


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    """The model as transformers itself loads it, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2_folder()
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("ask", [chat, complete])
def test_transformers(ours: OpenAI, asked: list[str], loaded: tuple[Any, Any], ask: Any) -> None:
    """The transformers engine's answer is that of `generate`, alone, beside seven others, and streamed."""
    expected = generated(*loaded, asked, chats=ask is chat)
    usage = {"stream": True, "stream_options": {"include_usage": True}}

    assert expected == [told(ask(ours, text, "hf")) for text in asked]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        whole = threads.map(lambda text: told(ask(ours, text, "hf")), asked)
        pieces = threads.map(lambda text: streamed(ask(ours, text, "hf", **usage)), asked)
        assert [expected, expected] == [list(whole), list(pieces)]


def generated(
    model: Any, tokenizer: Any, asked: list[str], chats: bool
) -> list[tuple[str, str, int]]:
    """Return what transformers itself makes of the questions."""
    import torch

    found = []
    for text in asked:
        if chats:
            ids = tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt"
            )["input_ids"]
        else:
            ids = tokenizer(f"Q: {text}\nA:", return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            whole = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        new = whole[0, ids.shape[1] :].tolist()
        finish = "stop" if new[-1] == model.generation_config.eos_token_id else "length"
        found.append((tokenizer.decode(new, skip_special_tokens=True), finish, len(new)))
    return found
