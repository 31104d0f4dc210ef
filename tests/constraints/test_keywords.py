"""Tests of unilect.constraints.keywords: both tables are held against the libraries themselves."""

import msgspec
import pytest

from support.models.schema_cases import CASES
from unilect.constraints.checker import MODEL
from unilect.constraints.keywords import FORMATS, LLAMACPP, LLGUIDANCE
from unilect.constraints.process.jobs import Jobs
from unilect.constraints.schema import ASSERTIONS
from unilect.tools.forced import compact


@pytest.fixture(scope="module")
def jobs() -> Jobs:
    """What the helper process does, in this one."""
    return Jobs(str(MODEL), mute=False)


@pytest.mark.parametrize("keyword", CASES)
def test_who_enforces_a_keyword(jobs: Jobs, keyword: str) -> None:
    """An engine enforces a keyword while it generates where its grammar allows no text that breaks it, and the tables say so."""
    schema, right, wrong = CASES[keyword]
    text = msgspec.json.encode(schema).decode()
    gbnf = jobs.do("schema_to_gbnf", {"schema": text})["done"]
    lark = "%llguidance {}\nstart: %json " + msgspec.json.encode(compact(schema)).decode()

    assert keyword in [used for used, _ in jobs.schema(text)]
    assert jobs.validate(text, right) is None
    assert jobs.validate(text, wrong) is not None
    assert (keyword in LLAMACPP) == (jobs.matches(gbnf, wrong) is not None)
    assert (keyword in LLGUIDANCE) == (jobs.matches(lark, wrong) is not None)
    assert jobs.matches(lark, right) is None


def test_nothing_is_missing() -> None:
    """Every keyword that either table names, or could name, has its case."""
    plain = {keyword.partition(":")[0] for keyword in CASES}

    assert {keyword for keyword in LLGUIDANCE if ":beside" not in keyword} <= set(CASES)
    assert ASSERTIONS - plain == {
        "$dynamicRef",
        "$recursiveRef",
        "then",
    }  # the first two fail, `then` stands beside `if`
    assert {name.split(":")[1] for name in CASES if name.startswith("format:")} <= FORMATS


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats(jobs: Jobs, name: str) -> None:
    """The validator knows each format that is said to be validated: a text that breaks all of them breaks it."""
    schema = msgspec.json.encode({"format": name}).decode()

    assert jobs.validate(schema, r'"\u0000 {[(%zz ^\\"') is not None
