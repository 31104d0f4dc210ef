"""The older servers' commands and clients, on unilect: what they said and got."""

import base64
import shutil
import ssl
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from support.clients.asking import ask
from support.common.certificates import certificate, needs_openssl
from support.models.torchside import need
from support.servers.serving import Server, serve
from unilect.cli._compat import Setup, setup
from unilect.config.server import ModelConfig
from unilect.core.requests import Message
from unilect.demo import FOLDER
from unilect.templates import chat as templates

ASSISTANT = [
    Message("system", "You are an assistant."),
    Message("user", "How are you?"),
    Message("assistant", "I'm fine. And you?"),
    Message("user", "Fine. Thanks."),
]
CHAT = "A chat between a curious user and an artificial intelligence assistant. The assistant follows the given rules no matter what."
CAPITAL = "告诉我中国的首都在哪里"
ANSWER = "中国的首都是北京。"


def model(done: Setup) -> ModelConfig:
    """The only model of a setup."""
    (found,) = done.config.models.values()
    return found


def prompt(*flags: str) -> str:
    """What the model reads for the note's example, with flags of api_like_OAI.py."""
    template = model(setup("llamacpp", flags, {})).chat_template
    assert template is not None
    return templates.find(template).render(ASSISTANT)


@pytest.fixture(scope="module")
def alpaca() -> Iterator[Server]:
    """`unilect compat alpaca` on the bundled model."""
    with serve("--base_model", "demo:", command=("compat", "alpaca")) as running:
        yield running


def test_case_05_template_flags() -> None:
    """The five template flags give the prompts of api_like_OAI.py, with backslash-n as a line break in all of them."""
    plain = (
        f"{CHAT}\n\nASSISTANT's RULE: You are an assistant.\nUSER: How are you?\nASSISTANT: I'm fine. And you?</s>"
        "\nUSER: Fine. Thanks.\nASSISTANT:"
    )
    own = "<s>\nSYS: You are an assistant.\n[INST] How are you? [/INST]  I'm fine. And you?\n###\n[INST] Fine. Thanks. [/INST]"
    flags = [
        "--chat-prompt", "<s>", "--user-name", r"\n[INST] ", "--ai-name", " [/INST]  ",
        "--system-name", r"\nSYS: ", "--stop", r"\n###",
    ]  # fmt: skip

    assert plain == prompt()
    assert own == prompt(*flags)
    assert ["\n###", "\n[INST]"] == model(setup("llamacpp", flags, {})).stop


def test_case_05_later_template() -> None:
    """The prompt of the later script is a named format."""
    expected = (
        f"{CHAT}</s>ASSISTANT's RULE: You are an assistant.</s>USER: How are you?</s>ASSISTANT: I'm fine. And you?</s>"
        "USER: Fine. Thanks.</s>ASSISTANT:"
    )
    assert expected == templates.find("oai-like-2024").render(ASSISTANT)


def test_case_08_environment() -> None:
    """MODEL, NUM_THREADS and MAX_LENGTH are chatglm.cpp's; threads of 0 are for us to choose."""
    given = {"MODEL": "./chatglm3-ggml.bin", "NUM_THREADS": "3", "MAX_LENGTH": "4096"}
    found = model(setup("chatglm", ["chatglm_cpp.openai_api:app"], given))
    plain = model(setup("chatglm", [], {"NUM_THREADS": "0"}))

    assert ("chatglm:./chatglm3-ggml.bin", 3, 4096) == (found.source, found.threads, found.context)
    assert ("chatglm:chatglm3-ggml.bin", None, None) == (
        plain.source,
        plain.threads,
        plain.context,
    )


def test_case_08_runs() -> None:
    """`MODEL=... unilect compat chatglm` answers whatever model a client names, and pages of every origin."""
    body = {"model": "anything", "messages": [{"role": "user", "content": CAPITAL}]}
    body |= {"temperature": 0}
    with serve(command=("compat", "chatglm"), env={"MODEL": "demo:"}) as server:
        answer = ask(f"{server.url}/chat/completions", body, {"Origin": "https://page"})
        log = server.log.read_text()

    assert "default-model" == answer.body["model"]
    assert ANSWER == answer.body["choices"][0]["message"]["content"]
    assert "https://page" == answer.headers["Access-Control-Allow-Origin"]
    assert "listens on 127.0.0.1" in log


def test_case_12_cors_flags() -> None:
    """FastChat's four CORS flags become ours; credentials are not given to every origin."""
    plain = setup("fastchat", [], {})
    named = setup(
        "fastchat",
        [
            "--allow-credentials", "--allowed-origins", '["https://a", "https://b"]',
            "--allowed-methods", '["POST"]', "--allowed-headers", '["X-Team"]',
        ],
        {},
    )  # fmt: skip
    every = setup("fastchat", ["--allow-credentials"], {})

    assert (["*"], [], ["*"], False) == (
        plain.config.allowed_origins,
        plain.config.allowed_methods,
        plain.config.allowed_headers,
        plain.config.allow_credentials,
    )
    assert (["https://a", "https://b"], ["POST"], ["X-Team"], True) == (
        named.config.allowed_origins,
        named.config.allowed_methods,
        named.config.allowed_headers,
        named.config.allow_credentials,
    )
    assert not every.config.allow_credentials
    assert any("--allow-credentials" in notice for notice in every.notices)


def test_case_16_base64(server: Server) -> None:
    """Embeddings as base64, which OpenAI's client asks for unasked, are those that a list of numbers gives."""
    client = openai.OpenAI(base_url=server.url, api_key="sk-test", max_retries=0)
    with client:
        plain = client.embeddings.create(model="demo", input="Hello", encoding_format="float")
        coded = client.embeddings.create(model="demo", input="Hello", encoding_format="base64")
        unasked = client.embeddings.create(model="demo", input="Hello")

    text: Any = coded.data[0].embedding
    assert isinstance(text, str)
    numbers = list(array("f", base64.b64decode(text)))
    assert pytest.approx(plain.data[0].embedding, abs=1e-6) == numbers
    assert numbers == pytest.approx(unasked.data[0].embedding)


def test_case_19_lora_flags() -> None:
    """The flags of Alpaca's server set the model, its adapter and the GPUs; what a GGUF file brings itself is said."""
    done = setup(
        "alpaca",
        [
            "--base_model", "alpaca.gguf", "--lora_model", "lora.gguf", "--tokenizer_path", "t",
            "--gpus", "0,1", "--load_in_8bit", "--alpha", "auto",
        ],
        {},
    )  # fmt: skip
    cpu = setup("alpaca", ["--base_model", "alpaca.gguf", "--only_cpu"], {})

    assert ("alpaca.gguf", ["lora.gguf"]) == (model(done).source, model(done).lora)
    assert {"CUDA_VISIBLE_DEVICES": "0,1"} == done.variables
    for flag in ("--tokenizer_path", "--load_in_8bit", "--alpha"):
        assert any(flag in notice for notice in done.notices), flag
    assert ({"CUDA_VISIBLE_DEVICES": ""}, 0) == (cpu.variables, model(cpu).gpu_layers)


def test_case_19_tokenizer_and_alpha(tmp_path: Path) -> None:
    """A folder without a tokenizer answers with that of `--tokenizer_path`, and `--alpha` lets it read twice what it was trained for."""
    need("torch", "transformers", "llguidance", "safetensors")
    shutil.copytree(FOLDER / "hf", tmp_path / "base", ignore=shutil.ignore_patterns("tokenizer*"))
    flags = ["--base_model", str(tmp_path / "base"), "--tokenizer_path", str(FOLDER / "hf")]
    body = {"max_tokens": 4, "do_sample": False}
    with serve(*flags, "--only_cpu", "--alpha", "2.0", command=("compat", "alpaca")) as server:
        url = f"{server.url}/completions"
        long, longer = (ask(url, body | {"prompt": "the cat " * n}) for n in (1500, 2500))

    assert (200, 400) == (long.status, longer.status)
    assert long.body["usage"]["prompt_tokens"] > 2048
    assert "4096" in longer.body["error"]["message"]


def test_case_20_sampling(server: Server, alpaca: Server) -> None:
    """num_beams, do_sample and repetition_penalty are known: honoured, or named where an engine has no beams."""
    messages = [{"role": "user", "content": CAPITAL}]
    body = {"messages": messages, "do_sample": False, "repetition_penalty": 1.1, "num_beams": 1}
    greedy = ask(f"{server.url}/chat/completions", body, {"api-key": "sk-test"})
    beams = ask(f"{server.url}/chat/completions", body | {"num_beams": 4}, {"api-key": "sk-test"})
    older = ask(f"{alpaca.url}/chat/completions", body | {"num_beams": 4})

    assert (200, ANSWER) == (greedy.status, greedy.body["choices"][0]["message"]["content"])
    assert "X-Unilect-Ignored" not in greedy.headers
    assert (400, "num_beams") == (beams.status, beams.body["error"]["param"])
    assert (200, "num_beams") == (older.status, older.headers["X-Unilect-Ignored"])


def test_case_21_alpaca_chat(alpaca: Server) -> None:
    """Messages have the key `message`, and the answer is the last of the choices, after the whole conversation."""
    conversation = [
        {"role": "system", "message": "SYS"},
        {"role": "user", "message": "Hello!"},
        {"role": "assistant", "message": "Hi."},
        {"role": "user", "message": CAPITAL},
    ]
    answer = ask(
        f"{alpaca.url}/chat/completions", {"messages": conversation, "do_sample": False}
    ).body

    *echoed, last = answer["choices"]
    assert "chinese-llama-alpaca" == answer["model"]
    assert [
        {"index": index, "message": {"role": turn["role"], "content": turn["message"]}}
        for index, turn in enumerate(conversation)
    ] == echoed
    assert (4, "assistant", ANSWER) == (
        last["index"],
        last["message"]["role"],
        last["message"]["content"],
    )


def test_case_21_alpaca_text_and_completion(alpaca: Server) -> None:
    """`messages` may be one text, a plain prompt is wrapped as a user's turn, and a stream is OpenAI's."""
    chat = ask(f"{alpaca.url}/chat/completions", {"messages": CAPITAL, "do_sample": False}).body
    plain = ask(f"{alpaca.url}/completions", {"prompt": CAPITAL, "do_sample": False}).body
    with openai.OpenAI(base_url=alpaca.url, api_key="none", max_retries=0) as client:
        chunks = client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": CAPITAL}], temperature=0, stream=True
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert [CAPITAL, ANSWER] == [choice["message"]["content"] for choice in chat["choices"]]
    assert [ANSWER] == [choice["text"] for choice in plain["choices"]]
    assert ANSWER == streamed


def test_case_21_alpaca_is_told_by_its_messages(server: Server) -> None:
    """On any listener a body with the key `message` gets Alpaca's form of an answer."""
    body = {"messages": [{"role": "user", "message": CAPITAL}], "temperature": 0}
    answer = ask(f"{server.url}/chat/completions", body, {"api-key": "sk-test"}).body

    assert [CAPITAL, ANSWER] == [choice["message"]["content"] for choice in answer["choices"]]


@needs_openssl
def test_case_24_tls(tmp_path: Path) -> None:
    """With uvicorn's or FastChat's certificate the server speaks HTTPS."""
    cert, key = certificate(tmp_path)
    flags = ("--ssl-keyfile", key, "--ssl-certfile", cert)
    with serve(*flags, command=("compat", "chatglm"), env={"MODEL": "demo:"}) as server:
        trust = ssl.create_default_context(cafile=cert)
        answer = ask(
            f"{server.url}/chat/completions",
            {"messages": [{"role": "user", "content": CAPITAL}], "temperature": 0},
            context=trust,
        )

    assert server.url.startswith("https://")
    assert ANSWER == answer.body["choices"][0]["message"]["content"]


@pytest.mark.heavy
def test_a_note_of_llama_cpp() -> None:
    """The note's request to api_like_OAI.py, with `n_predict` and any key word, gets the dialect's answer."""
    config = 'dialect = "llamacpp"\napi_keys = ["sekret"]\n[models.LLaMA_CPP]\n'
    body = {"prompt": "Hello", "n_predict": 3, "temperature": 0, "logit_bias": {"5": -1}, "stop": "\n\nHuman:"}  # fmt: skip
    with serve(config=config) as server:
        whole = ask(f"{server.root}/completions", body, {"Authorization": "Foo sekret"})
        wrong = ask(f"{server.root}/completions", body, {"Authorization": "Bearer x"})
        none = ask(f"{server.root}/completions", body)
        stream = ask(
            f"{server.root}/v1/completions", body | {"stream": True}, {"X-API-Key": "sekret"}
        )

    assert (200, 3) == (whole.status, whole.body["usage"]["completion_tokens"])
    assert "LLaMA_CPP" == whole.body["model"]
    assert (403, 401) == (wrong.status, none.status)
    first = msgspec.json.decode(stream.text.split("\n\n")[0].removeprefix("data: "))
    assert "text_completion.chunk" == first["object"]


def test_a_text_is_a_prompt_for_fastchat() -> None:
    """FastChat's clients send the prompt as `messages`, and get a chat's answer, whole and streamed."""
    prompt = f"<|im_start|>user\n{CAPITAL}<|im_end|>\n<|im_start|>assistant\n"
    body = {"messages": prompt, "temperature": 0, "max_tokens": 20}
    with serve(config='dialect = "fastchat"\n[models.demo]\n') as server:
        whole = ask(f"{server.url}/chat/completions", body).body
        stream = ask(f"{server.url}/chat/completions", body | {"stream": True}).text

    *frames, done = stream.removesuffix("\n\n").split("\n\n")
    deltas = [msgspec.json.decode(f.removeprefix("data: "))["choices"][0]["delta"] for f in frames]
    assert ("chat.completion", ANSWER) == (
        whole["object"],
        whole["choices"][0]["message"]["content"],
    )
    assert ANSWER == "".join(delta.get("content", "") for delta in deltas)
    assert "data: [DONE]" == done
