"""Tests of unilect.auth.secret."""

import re

from hypothesis import strategies as st

from support.common.properties import given
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, is_mistyped, new_secret


def test_a_new_key() -> None:
    """A key is one word of letters, digits and underscores, and no two are the same."""
    made = {new_secret() for _ in range(200)}

    assert 200 == len(made) == len({digest(one) for one in made})
    assert all(re.fullmatch(r"ul_\w{8}_\w{43}_\w{6}", one) for one in made)
    assert {one[3:11] for one in made} == {id_of(one) for one in made}
    assert not any(map(is_mistyped, made))


def test_secrets_are_random() -> None:
    """Every digit of a secret takes all its values but those that the first one of 256 bits cannot have."""
    made = [new_secret()[12:55] for _ in range(3000)]

    for place in range(1, 43):
        assert 62 == len({one[place] for one in made}), place


@given(st.integers(0, 63), st.sampled_from("0123456789abcXYZ_- é"))
def test_one_wrong_character(place: int, wrong: str) -> None:
    """A key with one character of it changed, left out or doubled is found out without a look into the store."""
    secret = new_secret()
    place %= len(secret)
    rest = secret[place + 1 :]
    for typed in (secret[:place] + wrong + rest, secret[:place] + rest, f"{secret}{wrong}"):
        if typed != secret and typed.startswith("ul_"):
            assert is_mistyped(typed), typed
        assert typed == secret or id_of(typed) is None


@given(st.text(max_size=80))
def test_any_text(text: str) -> None:
    """No other text is taken for a key of ours; one that does not begin as one is not called mistyped."""
    assert id_of(text) is None
    assert is_mistyped(text) == text.startswith("ul_")
