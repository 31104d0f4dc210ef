"""prompts.py: the sizes of prompts, files of conversations, and the times of requests."""

from pathlib import Path

import pytest

from unilect.cli.bench.prompts import Sizes, Words, arrivals, fit_sizes, read_prompts
from unilect.core.errors import ConfigError


@pytest.mark.parametrize("words", [1, 3, 8, 9, 200, 9000])
def test_words(words: int) -> None:
    """Prompts have the asked number of words, and no two of them begin alike."""
    drawn = Words()
    texts = [drawn.messages(words)[0]["content"].split("\n")[0] for _ in range(8)]

    assert {words} == {len(text.split()) for text in texts}
    assert words < 8 or len({tuple(text.split()[:8]) for text in texts}) == 8


def test_sizes() -> None:
    """Two counted prompts tell how many words make a size; a server that counts none, or always the same, gets a guess."""
    sizes = fit_sizes((16, 144), (44, 236))

    assert sizes == Sizes(1.5, 20.0, known=True)
    assert (1, 1, 157) == (sizes.words(1), sizes.words(20), sizes.words(256))
    assert not fit_sizes((16, 144), (0, 0)).known
    assert not fit_sizes((16, 144), (50, 50)).known


@pytest.mark.parametrize("rate", [0.001, 1, 7.3, 400])
def test_arrivals(rate: float) -> None:
    """Requests come in ascending order within the time, as many as the rate says and at least one, at the same times for the same seed."""
    times = arrivals(rate, 10, "seed")

    assert len(times) == max(1, round(rate * 10))
    assert sorted(times) == times
    assert 0 <= times[0] <= times[-1] <= 10
    assert times == arrivals(rate, 10, "seed") != arrivals(rate, 10, "other")


def test_a_file(tmp_path: Path) -> None:
    """A line is a request, a list of messages, a prompt or a text."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"messages": [{"role": "system", "content": "x"}]}\n\n[{"role": "user", "content": "a"}]\n{"prompt": "b"}\n"c"\n')  # fmt: skip
    user = [[{"role": "user", "content": text}] for text in "abc"]

    assert [[{"role": "system", "content": "x"}], *user] == read_prompts(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no line"),
        ('"a"\n{', "prompts.jsonl:2: is not valid JSON"),
        ("1", "prompts.jsonl:1: expected"),
        ("[]", "prompts.jsonl:1: expected"),
        ('[{"content": "a"}]', "prompts.jsonl:1: expected"),
        ('{"text": "a"}', "prompts.jsonl:1: expected"),
        ("[" * 300_000, "prompts.jsonl:1: is not valid JSON"),
        ('"\\ud800"', "prompts.jsonl:1: is not valid JSON"),
    ],
)
def test_a_wrong_file(text: str, said: str, tmp_path: Path) -> None:
    """A line that is no conversation is named."""
    (tmp_path / "prompts.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_prompts(tmp_path / "prompts.jsonl")


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "missing")
