"""Tests of unilect.store.ids."""

from hypothesis import given
from hypothesis import strategies as st

from unilect.store.ids import OUTPUT, home_of, item_id, response_id


@given(prefix=st.sampled_from(["msg", "fc", "ctco"]), number=st.integers(0, OUTPUT + 20_000))
def test_an_item_tells_its_response(prefix: str, number: int) -> None:
    """The id of an item tells its response, whatever it is and wherever it stands there."""
    response = response_id()

    assert response == home_of(item_id(response, prefix, number))


def test_ids_differ() -> None:
    """No two responses have one id, and no two items of one."""
    assert 1000 == len({response_id() for _ in range(1000)})
    response = response_id()
    assert 2000 == len(
        {item_id(response, "msg", n + at) for n in range(1000) for at in (0, OUTPUT)}
    )


def test_ids_grow() -> None:
    """A response that is made later has a later id."""
    ids = [response_id()[: 5 + 12] for _ in range(1000)]

    assert sorted(ids) == ids


@given(st.text(max_size=80))
def test_any_text(item: str) -> None:
    """A text that a client has made tells a response or none, and never fails."""
    assert home_of(item) == "" or len(home_of(item)) == len(response_id())
