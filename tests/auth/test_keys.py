"""Tests of unilect.auth.keys."""

import hashlib
import statistics
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from support.common.watched import WatchedText
from unilect.auth.keys import ANONYMOUS, Keys, MetricsKeys
from unilect.core.errors import AuthenticationError, MissingKey, PermissionDenied

SECRET = "sk-" + "k" * 61
ROUNDS, IN_A_ROUND = 400, 50
MOST_DIFFERENCE = 0.02
KEYS = Keys(["sk-first-key", "sk-second-key"])


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer sk-first-key"},
        {"Authorization": "bearer sk-first-key"},
        {"Authorization": "BEARER  sk-first-key "},
        {"X-API-Key": "sk-first-key"},
        {"api-key": "sk-first-key"},
        {"Authorization": "Basic dTpw", "X-API-Key": "sk-first-key"},
        {"Authorization": "Bearer ", "api-key": "sk-first-key"},
        {"X-API-Key": "", "api-key": "sk-first-key"},
    ],
)
async def test_known(headers: dict[str, str]) -> None:
    """A key is taken from any of the three headers, whatever else stands beside it."""
    known = await KEYS.caller({"Authorization": "Bearer sk-first-key"})
    assert known == await KEYS.caller(headers)


async def test_any_word_before_a_key() -> None:
    """Where any word may stand before the key, it is found after each, and after none it is not."""
    keys = Keys(["sk-first-key"], any_scheme=True)

    assert (await keys.caller({"Authorization": "Foo sk-first-key"})).name.startswith("key-")
    with pytest.raises(AuthenticationError) as raised:
        await keys.caller({"Authorization": "sk-first-key"})
    assert not raised.value.wrong
    with pytest.raises(AuthenticationError) as raised:
        await keys.caller({"Authorization": "Foo other"})
    assert raised.value.wrong


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer sk-first-ke"},
        {"Authorization": "Bearer sk-first-key2"},
        {"Authorization": "Bearer SK-FIRST-KEY"},
        {"Authorization": "Bearer sk-first-key,sk-second-key"},
        {"Authorization": "sk-first-key"},
        {"Authorization": "Token sk-first-key"},
        {"Authorization": "Bearer wrong", "X-API-Key": "sk-first-key"},
        {"X-API-Key": "Bearer sk-first-key"},
        {"X-Other": "sk-first-key"},
        {"api-key": "sk-\udcff"},
    ],
)
async def test_unknown(headers: dict[str, str]) -> None:
    """No key, a wrong one, and a wrong one beside a right one are refused."""
    with pytest.raises(AuthenticationError) as raised:
        await KEYS.caller(headers)

    assert "sk-" not in raised.value.message


async def test_callers_differ() -> None:
    """Each key has a name of its own for logs."""
    names = {
        (await KEYS.caller({"api-key": key})).name for key in ("sk-first-key", "sk-second-key")
    }

    assert len(names) == 2


@pytest.mark.parametrize("key", ["a", "abc", "secret", "sk-first-key", "x" * 100])
async def test_a_name_is_no_key(key: str) -> None:
    """The name for logs is made of the key's digest alone."""
    digest = hashlib.sha256(key.encode()).hexdigest()

    assert f"key-{digest[:16]}" == (await Keys([key]).caller({"api-key": key})).name


async def test_a_digest_that_begins_as_another() -> None:
    """Two keys whose digests have the first 8 digits in common are two callers."""
    alike = [f"sha256:{'5' * 8}{digit * 56}" for digit in "ab"]

    assert 2 == len(Keys(alike).callers)


@pytest.mark.parametrize("clients", [["sk-client"], []])
@pytest.mark.parametrize("sent", ["sk-metrics", "sk-admin"])
async def test_keys_for_metrics(clients: list[str], sent: str) -> None:
    """Metrics are read with a key for them or for the admin API, whether clients need one or not."""
    keys = MetricsKeys(Keys(clients), ["sk-metrics"], ["sk-admin"])
    found = await keys.caller({"Authorization": f"Bearer {sent}"})
    assert found == await Keys([sent]).caller({"X-API-Key": sent})


async def test_no_key_for_metrics() -> None:
    """A client's key cannot read the metrics, nor can another one or none where clients need one; where nobody needs any everybody can."""
    keys = MetricsKeys(Keys(["sk-client"]), [], [])
    with pytest.raises(PermissionDenied, match="Send one of `metrics_keys`"):
        await keys.caller({"X-API-Key": "sk-client"})
    for own in ([], ["sk-metrics"]):
        keys.change(own, [])
        with pytest.raises(MissingKey):
            await keys.caller({})
        with pytest.raises(AuthenticationError):
            await keys.caller({"X-API-Key": "sk-other"})

    alone = MetricsKeys(Keys(), ["sk-metrics"], [])
    with pytest.raises(MissingKey):
        await alone.caller({})
    with pytest.raises(AuthenticationError):
        await alone.caller({"X-API-Key": "sk-client"})
    alone.change([], ["sk-admin"])
    assert ANONYMOUS == await alone.caller({}) == await alone.caller({"X-API-Key": "x"})


async def test_keys_that_begin_alike() -> None:
    """1,000 keys with the same first 40 characters are 1,000 callers, and what they have in common is none."""
    same = "sk-" + "a" * 37
    known = Keys([f"{same}{number}" for number in range(1000)])

    callers = [await known.caller({"X-API-Key": f"{same}{number}"}) for number in range(1000)]
    assert 1000 == len({caller.name for caller in callers})
    with pytest.raises(AuthenticationError):
        await known.caller({"X-API-Key": same})


async def test_a_digest_of_the_configuration() -> None:
    """A key that the configuration holds by its digest is the same caller, and the digest is no key."""
    digest = f"sha256:{hashlib.sha256(b'sk-first-key').hexdigest()}"
    headers = {"X-API-Key": "sk-first-key"}

    assert await KEYS.caller(headers) == await Keys([digest]).caller(headers)
    with pytest.raises(AuthenticationError):
        await Keys([digest]).caller({"X-API-Key": digest})


async def test_no_keys() -> None:
    """Where no key is set, everybody may call, with any key or none."""
    assert [ANONYMOUS] * 2 == [await Keys().caller({}), await Keys().caller({"api-key": "x"})]
    assert (False, True) == (Keys().required, KEYS.required)


@given(st.text(max_size=50))
async def test_any_header(value: str) -> None:
    """Any header is a key or an AuthenticationError."""
    for name in ("Authorization", "X-API-Key", "api-key"):
        with pytest.raises(AuthenticationError):
            await KEYS.caller({name: value})


def seconds_of(refuse: Callable[[str], object], sent: dict[str, str]) -> dict[str, float]:
    """The median time of the processor in which each text is refused: 20,000 refusals of each, taken in turns."""
    took: dict[str, list[int]] = {name: [] for name in sent}
    for number in range(ROUNDS):
        for name in sorted(sent, reverse=bool(number % 2)):
            before = time.thread_time_ns()
            for _ in range(IN_A_ROUND):
                refuse(sent[name])
            took[name].append(time.thread_time_ns() - before)
    return {name: statistics.median(each) / IN_A_ROUND for name, each in took.items()}


def difference(refuse: Callable[[str], object]) -> float:
    """By how much it takes longer to refuse what is wrong at its end than what is wrong from its beginning, as a fraction."""
    sent = {"first": "x" + SECRET[1:], "last": SECRET[:-1] + "x"}
    found = []
    for _ in range(5):  # something else may run beside one of them
        took = seconds_of(refuse, sent)
        found.append(took["last"] / took["first"] - 1)
    return statistics.median(found)


def test_time_of_a_refusal() -> None:
    """It takes as long to refuse a key that is wrong in its first character as one that is wrong in its last."""
    known = Keys([SECRET, *(f"{SECRET[:-8]}{number:08}" for number in range(50))])

    def refuse(secret: str) -> None:
        with suppress(AuthenticationError):
            known.caller({"X-API-Key": secret}).send(None)

    assert abs(difference(refuse)) < MOST_DIFFERENCE


def test_the_measure_finds_a_comparison() -> None:
    """The same measure finds a comparison that ends at the first character that differs."""
    known = [SECRET]

    def refuse(secret: str) -> bool:
        return any(
            all(a == b for a, b in zip(secret, each, strict=False))
            for each in known
            if hashlib.sha256(secret.encode()).digest()
        )

    assert difference(refuse) > 10 * MOST_DIFFERENCE


@pytest.mark.parametrize("sent", [SECRET, f"{SECRET[:-1]}x", "ul_12345678_a", "x"])
async def test_a_sent_key_is_hashed_and_nothing_else(sent: str) -> None:
    """What a client sends is hashed and compared with no text, be it right or wrong."""
    secret = WatchedText(sent)
    with suppress(AuthenticationError):
        await Keys([SECRET, "sk-other"]).caller({"X-API-Key": secret})

    assert [("encode",)] == secret.looks
