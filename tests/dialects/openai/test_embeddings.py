"""Tests of unilect.dialects.openai.embeddings: bodies in, answers out; test_app.py has the routes."""

import base64
import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.errors import InvalidRequest
from unilect.core.requests import EmbeddingRequest, Embeddings
from unilect.dialects.openai.embeddings import MAX_INPUTS, decode, encode, shorten


def test_numbers() -> None:
    """Vectors are given as numbers unless base64 is asked for, each with its index."""
    body = encode(EmbeddingRequest(input=["a", "b"]), Embeddings([[1.0], [0.5]], 7), "m")

    assert msgspec.json.decode(body) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1.0]},
            {"object": "embedding", "index": 1, "embedding": [0.5]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_base64(vector: list[float]) -> None:
    """Base64 holds the vector as little-endian 32-bit numbers."""
    request = EmbeddingRequest(input="a", encoding_format="base64")
    body = msgspec.json.decode(encode(request, Embeddings([vector], 1), "m"))

    data = base64.b64decode(body["data"][0]["embedding"])
    assert vector == list(struct.unpack(f"<{len(vector)}f", data))


def test_ignored_parameters() -> None:
    """What was ignored is named in the answer."""
    body = encode(EmbeddingRequest(input="a"), Embeddings([[1.0]], 1), "m", ("x",))

    assert msgspec.json.decode(body)["unilect"] == {"ignored": ["x"]}


@pytest.mark.parametrize(
    ("vector", "dimensions", "expected"),
    [
        ([3.0, 4.0, 5.0], 2, [0.6, 0.8]),
        ([3.0, 4.0], 2, [3.0, 4.0]),
        ([0.0, 0.0, 1.0], 2, [0.0, 0.0]),
        ([-2.0, 1.0], 1, [-1.0]),
    ],
)
def test_shortened(vector: list[float], dimensions: int, expected: list[float]) -> None:
    """A shortened vector has unit length again, a whole one is left as it is."""
    assert expected == shorten(vector, dimensions)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20).filter(
        lambda vector: any(abs(x) > 1e-3 for x in vector[:-1])
    )
)
def test_shortened_has_unit_length(vector: list[float]) -> None:
    """Any vector that is shortened has the length 1."""
    head = shorten(vector, len(vector) - 1)

    assert math.isclose(1.0, math.hypot(*head), rel_tol=1e-9)


def test_more_dimensions_than_there_are() -> None:
    """More dimensions than the model has are refused by name."""
    request = EmbeddingRequest(input="a", dimensions=3)
    with pytest.raises(InvalidRequest) as raised:
        encode(request, Embeddings([[1.0, 2.0]], 1), "m")

    assert raised.value.param == "dimensions"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": [1, [2]]}, "input"),
        ({"input": ["a", 1] * 65}, "input"),
        ({"input": [1.5]}, "input[0]"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
    ],
)
def test_bodies_that_are_refused(fields: dict[str, Any], param: str) -> None:
    """A body that is wrong is refused by the name of its field."""
    with pytest.raises(InvalidRequest) as raised:
        decode(msgspec.json.encode(fields))

    assert param == raised.value.param


@pytest.mark.parametrize("given", [[{"type": "image_url"}], {"prompt_string": "a"}, ["a", {}]])
def test_images(given: Any) -> None:
    """An input that is an object, as pictures are sent, is refused with the reason."""
    with pytest.raises(InvalidRequest) as raised:
        decode(msgspec.json.encode({"input": given}))

    assert "no images" in raised.value.message
    assert (raised.value.param or "").startswith("input")


@pytest.mark.parametrize("given_input", ["a", ["a"], [1, 2], [[1], [2]], ["a", [1, 2]], ["a", 1], [0, "a"], ["a"] * MAX_INPUTS])  # fmt: skip
def test_inputs_that_are_taken(given_input: Any) -> None:
    """Every form of an input is taken."""
    assert decode(msgspec.json.encode({"input": given_input})).inputs
