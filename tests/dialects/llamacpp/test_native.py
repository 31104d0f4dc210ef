"""Tests of unilect.dialects.llamacpp.native: the native protocol in front of the bundled model, and of a server that speaks it."""

import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from hypothesis import strategies as st

from support.backends.engine import ENGINES_IN_CI, Spy, engine, made
from support.backends.scripted import HELLO, frames, says, scripted, stream_of
from support.common.properties import given
from support.servers.appserver import App, chunks, serving, upstream
from unilect.core.errors import BackendError, InvalidRequest, UnilectError
from unilect.core.events import Extra, Finish, TextDelta, TokenLogprob, Usage, fold
from unilect.core.requests import CompletionRequest
from unilect.dialects.llamacpp._answer import NativeEncoder
from unilect.dialects.llamacpp.native import (
    InfillRequest,
    NativeCompletionRequest,
    _completion,
    completion_fields,
)
from unilect.dialects.openai import completions as openai_completions

in_one_loop = pytest.mark.asyncio(loop_scope="module")
PROMPT = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
#: What a client of either generation looks for in a last frame or a whole answer.
OF_2023 = {"content", "slot_id", "stop", "model", "tokens_predicted", "tokens_evaluated", "generation_settings", "prompt", "truncated", "stopped_eos", "stopped_word", "stopped_limit", "stopping_word", "tokens_cached", "timings"}  # fmt: skip
OF_2025 = {"index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached", "timings"}  # fmt: skip
TIMINGS = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def spy(request: pytest.FixtureRequest) -> AsyncIterator[Spy]:
    """The bundled model on each engine, and what it is asked."""
    async with engine(request.param, parallel=4) as running:
        yield Spy(running)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(spy: Spy) -> AsyncIterator[App]:
    """An application in front of it."""
    async with serving(spy) as running:
        yield running


def translated(native: NativeCompletionRequest) -> CompletionRequest:
    """A native request as the backend gets it."""
    return openai_completions.decode(msgspec.json.encode(completion_fields(native)))


async def post(app: App, path: str, **body: Any) -> tuple[int, Any]:
    """The status and the answer of a POST."""
    async with app.post(path, **body) as response:
        return response.status, await response.json()


@in_one_loop
async def test_a_whole_answer(app: App) -> None:
    """A whole answer has the fields of both generations, and what was measured."""
    status, body = await post(app, "/completion", prompt=PROMPT, n_predict=64, temperature=0)

    assert (200, "Hello! How can I help you?", "m") == (status, body["content"], body["model"])
    assert set() == (OF_2023 | OF_2025) - set(body)
    assert set() == TIMINGS - set(body["timings"])
    assert (True, "eos", True, False) == (
        body["stop"],
        body["stop_type"],
        body["stopped_eos"],
        body["stopped_limit"],
    )
    assert (10, 11) == (body["tokens_evaluated"], body["tokens_predicted"])
    assert (PROMPT, 64, 0) == (
        body["prompt"],
        body["generation_settings"]["n_predict"],
        body["generation_settings"]["temp"],
    )


@in_one_loop
async def test_a_stream(app: App) -> None:
    """A stream has a frame for each piece, and a last one that says the rest; no `[DONE]`."""
    async with app.post(
        "/completion", prompt=PROMPT, n_predict=4, temperature=0, stream=True
    ) as response:
        kind = response.headers["content-type"]
        got = await chunks(response)

    assert kind.startswith("text/event-stream")
    assert "Hello! How" == "".join(frame["content"] for frame in got)
    assert [False] * 4 + [True] == [frame["stop"] for frame in got]
    assert {"content", "stop", "slot_id", "multimodal", "id_slot", "index", "tokens"} == set(got[0])
    assert set() == (OF_2023 | OF_2025) - set(got[-1])
    assert ("", "limit", True) == tuple(
        got[-1][name] for name in ("content", "stop_type", "stopped_limit")
    )


@in_one_loop
@pytest.mark.parametrize("stream", [False, True])
async def test_the_stop_word(app: App, stream: bool) -> None:
    """An answer says which stop word ended it, whole and in a stream's last frame."""
    body = {"prompt": PROMPT, "n_predict": 64, "temperature": 0, "stop": ["zz", " help"]}
    async with app.post("/completion", **body, stream=stream) as response:
        last = (await chunks(response))[-1] if stream else await response.json()

    assert (" help", "word", True, False) == (
        last["stopping_word"],
        last["stop_type"],
        last["stopped_word"],
        last["stopped_eos"],
    )


@in_one_loop
async def test_probabilities(app: App) -> None:
    """Probabilities are told by the names of both generations."""
    body: Any
    _, body = await post(app, "/completion", prompt=PROMPT, n_predict=1, n_probs=2, temperature=0)

    [told] = body["completion_probabilities"]
    assert ("Hello", "Hello") == (told["content"], told["token"])
    assert 2 == len(told["probs"]) == len(told["top_logprobs"])
    assert math.exp(told["logprob"]) == pytest.approx(told["probs"][0]["prob"])
    assert {"tok_str", "prob", "token", "logprob", "bytes"} == set(told["probs"][0])


@in_one_loop
async def test_several_prompts(app: App) -> None:
    """Several prompts are answered in a list, each with its own."""
    status, body = await post(app, "/completion", prompt=["a", "b"], n_predict=1)

    assert (200, ["a", "b"], [0, 1]) == (
        status,
        [one["prompt"] for one in body],
        [one["index"] for one in body],
    )


@in_one_loop
async def test_a_mixed_prompt(app: App, spy: Spy) -> None:
    """Texts and token ids in one prompt become ids."""
    ids = (await post(app, "/tokenize", content="The capital"))[1]["tokens"]
    status, _ = await post(app, "/completion", prompt=["The capital", 5, ""], n_predict=1)

    assert 200 == status
    assert [*ids, 5] == spy.asked[-1].prompt  # type: ignore[union-attr]


@in_one_loop
async def test_tokens(app: App) -> None:
    """A text becomes ids, and ids become the text."""
    status, body = await post(app, "/tokenize", content="Hello 中国 😀", parse_special=True)
    back = await post(app, "/detokenize", tokens=body["tokens"])
    none = await post(app, "/tokenize")

    assert (200, (200, {"content": "Hello 中国 😀"}), (200, {"tokens": []})) == (status, back, none)
    assert all(isinstance(token, int) for token in body["tokens"])


@in_one_loop
async def test_what_is_not_understood_is_named(app: App) -> None:
    """A field that a call has no place for is named in a header."""
    async with app.post("/tokenize", content="a", pad=False) as response:
        told = response.headers["X-Unilect-Ignored"]
    async with app.post(
        "/completion", prompt="a", n_predict=1, penalize_nl=True, n_keep=0
    ) as response:
        also = response.headers["X-Unilect-Ignored"]

    assert ("pad", "penalize_nl") == (told, also)


@in_one_loop
async def test_embeddings(app: App) -> None:
    """A text is embedded as an object, several as a list."""
    _, one = await post(app, "/embedding", content="a")
    _, many = await post(app, "/embedding", content=["a", "b"])

    assert [0, 1] == [item["index"] for item in many]
    assert one["embedding"] == pytest.approx(many[0]["embedding"], abs=1e-5)
    assert one["embedding"] != pytest.approx(many[1]["embedding"], abs=1e-3)


async def test_props_of_a_model_that_does_not_run() -> None:
    """A model that is asked what it can do is not started for that."""
    spy = Spy(made("gguf"))
    async with serving(spy) as idle:
        status, body = await idle.get("/props")

    assert (200, 2048) == (
        status,
        msgspec.json.decode(body)["default_generation_settings"]["n_ctx"],
    )
    assert 0 == spy.starts


@in_one_loop
async def test_props_and_health(app: App) -> None:
    """The server's state is told without a template, a path or a slot's content."""
    status, body = await app.get("/props")
    props = msgspec.json.decode(body)

    assert (200, "m") == (status, props["model_alias"])
    assert 0 < props["default_generation_settings"]["n_ctx"]
    assert (200, {"status": "ok"}) == (
        (health := await app.get("/health"))[0],
        msgspec.json.decode(health[1]),
    )
    app.service.ready = False
    try:
        status, body = await app.get("/health")
    finally:
        app.service.ready = True
    assert (503, "Loading model") == (status, msgspec.json.decode(body)["error"]["message"])


@in_one_loop
@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/completion", {"prompt": "a", "n_predict": "x"}, 400, "n_predict"),
        ("/completion", {"prompt": "a", "n_predict": -3}, 400, "n_predict"),
        ("/completion", {"prompt": "a", "n_probs": 1001}, 400, "n_probs"),
        ("/completion", {"prompt": "a", "temperature": "hot"}, 400, "temperature"),
        ("/completion", {"prompt": "a", "mirostat": 3}, 400, "mirostat"),
        ("/completion", {"prompt": "a", "logit_bias": [[1, True]]}, 400, "logit_bias"),
        ("/completion", {"prompt": "a", "logit_bias": [["5", 1]]}, 400, "logit_bias"),
        ("/completion", {"prompt": {"prompt_string": 5}}, 400, "prompt.prompt_string"),
        ("/completion", {"prompt": ["a", 5] * 65}, 400, "prompt"),
        ("/completion", {"prompt": [5, [6]]}, 400, "prompt[0]"),
        ("/completion", {"prompt": "word " * 20_000}, 400, "prompt"),
        ("/completion", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, 400, "input_suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": "c"}, 400, None),
        ("/tokenize", {"content": 5}, 400, "content"),
        ("/detokenize", {"tokens": [-1]}, 400, None),
        ("/detokenize", {"tokens": [2**30]}, 400, "tokens"),
        ("/embedding", {}, 400, "content"),
        ("/embedding", {"content": ""}, 400, "content"),
    ],
)
async def test_bodies_that_are_refused(
    app: App, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    """What is wrong is told in our envelope, by the name that the client gave it."""
    actual, told = await post(app, path, **body)

    assert status == actual, told
    assert param is None or param == told["error"]["param"]
    assert set() == {"message", "type", "param", "code"} - set(told["error"])


@in_one_loop
async def test_backends_that_lack_a_call() -> None:
    """A backend that has no such call is 501, in the envelope."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as other:
        for path, body in (("/tokenize", {"content": "a"}), ("/detokenize", {"tokens": [1]})):
            status, told = await post(other, path, **body)
            assert (501, "unsupported_operation") == (status, told["error"]["code"])


@in_one_loop
async def test_a_stream_that_breaks() -> None:
    """A stream that breaks ends with an error as data, and never with `stop`."""
    begun = frames({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    async with scripted(says(stream_of(begun))) as server, serving(upstream(server.url)) as other:
        async with other.post("/completion", prompt="x", stream=True) as response:
            got = await chunks(response)

    assert ["a"] == [frame["content"] for frame in got[:-1]]
    assert "backend_error" == got[-1]["error"]["code"]
    assert not any(frame.get("stop") for frame in got)


def native(**body: Any) -> CompletionRequest:
    """A native body in OpenAI's words."""
    raw_fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}
    kind = InfillRequest if "input_prefix" in body else NativeCompletionRequest
    return translated(msgspec.structs.replace(msgspec.convert(body, kind), raw_fields=raw_fields))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"n_predict": 5}, {"max_tokens": 5}),
        ({"n_predict": -1}, {"max_tokens": None}),
        ({"n_predict": -2}, {"max_tokens": None}),
        ({"n_predict": 0}, {"max_tokens": 0}),
        ({"n_probs": 3}, {"logprobs": 3}),
        ({"n_probs": 0}, {"logprobs": None}),
        ({"seed": -1}, {"seed": -1}),
        ({"seed": 2**32 - 1}, {"seed": -1}),
        ({"n_probs": 21}, {"logprobs": 20, "n_probs": 21}),
        ({"seed": 7}, {"seed": 7}),
        ({"temperature": -1}, {"temperature": 0}),
        ({"stop": "ab"}, {"stop": ["ab"]}),
        ({"stop": ["a", ""]}, {"stop": ["a"]}),
        ({"logit_bias": [[5, 1.5], [6, False]]}, {"logit_bias": {"5": 1.5, "6": False}}),
        ({"logit_bias": {"5": 1}}, {"logit_bias": {"5": 1}}),
        ({"logit_bias": [[" the", False], [5, 1]]}, {"logit_bias": {" the": False, "5": 1}}),
        ({"mirostat": 2, "grammar": "root ::= [a]"}, {"mirostat": 2, "grammar": "root ::= [a]"}),
        ({"input_prefix": "a", "input_suffix": "b"}, {"prompt": "a", "suffix": "b"}),
        ({"temperature": None, "stop": None, "top_k": None}, {"temperature": None, "stop": None}),
    ],
)
def test_translation(body: dict[str, Any], expected: dict[str, Any]) -> None:
    """Native names and values become OpenAI's."""
    request = native(**body)

    assert expected == {name: getattr(request, name) for name in expected}


def test_what_goes_on_as_it_was_written() -> None:
    """Fields of llama.cpp's own go on byte for byte, those that ask for nothing do not, and a key never does."""
    request = native(prompt="a", n_keep=5, id_slot=-1, tfs_z=1.0, samplers=["top_k"], api_key="k")

    assert {"prompt", "n_keep", "samplers"} == set(request.raw_fields)
    assert b'["top_k"]' == bytes(request.raw_fields["samplers"])


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)


@given(
    st.dictionaries(
        st.sampled_from([*NativeCompletionRequest.__struct_fields__, "seed", "top_k", "grammar"]),
        VALUES | st.lists(VALUES | st.lists(VALUES, max_size=2), max_size=3),
    )
)
def test_any_body(body: dict[str, Any]) -> None:
    """Any body is a request or an error of ours."""
    try:
        request = translated(_completion.decode(msgspec.json.encode(body)))
    except UnilectError as error:
        assert isinstance(error, InvalidRequest)
    else:
        assert request.prompts or request.prompt == []


LOGPROB = TokenLogprob("a", -0.5, None, [TokenLogprob("b", -1.0)])


def test_the_words_of_another_server() -> None:
    """What a native server said comes out again, by the names of both generations, but for its paths."""
    told = {
        "slot_id": msgspec.Raw(b"3"),
        "stopped_word": msgspec.Raw(b"true"),
        "stopping_word": msgspec.Raw(b'"x"'),
        "generation_settings": msgspec.Raw(b'{"temp":0.5,"n_ctx":9,"model":"/home/me/x.gguf"}'),
        "timings": msgspec.Raw(b'{"prompt_ms":7.5}'),
    }
    events = [
        TextDelta("a", extra=Extra(native={"tokens": [5]})),
        TextDelta("b", extra=Extra(native={"tokens": [6]})),
        Finish("stop", extra=Extra({"truncated": True}, native=told)),
        Usage(2, 2),
    ]
    whole = msgspec.json.decode(
        NativeEncoder(CompletionRequest(prompt="p"), "m").whole(fold([events]), ("tfs_z",))
    )

    expected = {
        "id_slot": 3,
        "slot_id": 3,
        "stop_type": "word",
        "stopped_word": True,
        "stopped_eos": False,
        "stopping_word": "x",
        "timings": {"prompt_ms": 7.5},
        "truncated": True,
        "tokens": [5, 6],
        "unilect": {"ignored": ["tfs_z"]},
        "generation_settings": {
            "temp": 0.5,
            "temperature": 0.5,
            "n_ctx": 9,
            "model": "m",
            "stream": False,
        },
    }
    assert expected == {name: whole[name] for name in expected}


def test_pieces() -> None:
    """A piece with probabilities or ids has them in its own frame, and a plain one is short."""
    encoder = NativeEncoder(CompletionRequest(prompt="p", stream=True), "m")
    batch = [
        TextDelta("a", logprobs=[LOGPROB]),
        TextDelta("b", extra=Extra(native={"tokens": [6]})),
    ]
    first, second = (
        msgspec.json.decode(frame.removeprefix(b"data: "))
        for frame in encoder.encode([*batch]).split(b"\n\n")[:-1]
    )

    assert "a" == first["completion_probabilities"][0]["token"]
    assert ([6], False) == (second["tokens"], second["stop"])
    assert b"" == encoder.end()
    assert b'data: {"error":{"message":"No."' in encoder.error(BackendError("No."))
