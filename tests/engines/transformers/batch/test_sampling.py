"""Tests of unilect.engines.transformers.batch.sampling: what is drawn is distributed as it should be."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st

from support.models.torchside import need

need("torch", "transformers")

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from support.common.properties import given
from unilect.engines.transformers.batch.sampling import RowSampler, Sampler, logprobs
from unilect.engines.transformers.job import Sampling

SIZE, DRAWS, ROWS = 40, 20_000, 250
torch.manual_seed(7)
LOGITS = torch.randn(SIZE) * 2
PROMPT = [int(LOGITS.argmax()), 3, 3]


def drawn(made: list[int], **rules: Any) -> Counter[int]:
    """How often each token is drawn in DRAWS draws."""
    samplers = [RowSampler(Sampling(seed=seed, **rules), PROMPT) for seed in range(ROWS)]
    for row in samplers:
        row.made += made
    sampler = Sampler(samplers, torch.device("cpu"))
    found: Counter[int] = Counter()
    for _ in range(DRAWS // ROWS):
        found.update(sampler.choose(LOGITS.repeat(ROWS, 1)))
    return found


def reference(made: list[int], **rules: Any) -> list[float]:
    """The probabilities that the rules mean, worked out one token at a time."""
    logits = LOGITS.double().tolist()
    for token in set(PROMPT) | set(made):
        penalty = rules.get("repetition_penalty", 1.0)
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, count in Counter(made).items():
        logits[token] -= rules.get("presence_penalty", 0) + count * rules.get(
            "frequency_penalty", 0
        )
    for token, value in rules.get("logit_bias", {}).items():
        logits[token] += value
    logits = [value / rules.get("temperature", 1.0) for value in logits]
    order = sorted(range(SIZE), key=lambda token: -logits[token])
    order = order[: rules.get("top_k") or SIZE]
    masses = {token: math.exp(logits[token]) for token in order}
    total, before, kept = sum(masses.values()), 0.0, []
    for token in order:
        if before < rules.get("top_p", 1.0) or not kept:
            kept.append(token)
        before += masses[token] / total
    kept = [t for t in kept if masses[t] >= rules.get("min_p", 0.0) * masses[kept[0]]]
    if rules.get("typical_p", 1.0) < 1:
        kept = _typical({token: masses[token] for token in kept}, rules["typical_p"])
    total = sum(masses[token] for token in kept)
    return [masses[token] / total if token in kept else 0.0 for token in range(SIZE)]


def _typical(masses: dict[int, float], wanted: float) -> list[int]:
    total = sum(masses.values())
    surprise = {token: -math.log(mass / total) for token, mass in masses.items()}
    expected = sum(mass / total * surprise[token] for token, mass in masses.items())
    kept, reached = [], 0.0
    for token in sorted(masses, key=lambda token: abs(surprise[token] - expected)):
        if kept and reached >= wanted:
            break
        kept.append(token)
        reached += masses[token] / total
    return kept


def chi_square(found: Counter[int], expected: list[float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; tokens that are drawn less than five times are put together."""
    cells, rare = [], [0.0, 0.0]
    for token, probability in enumerate(expected):
        if probability * DRAWS >= 5:
            cells.append((found[token], probability * DRAWS))
        else:
            rare[0] += found[token]
            rare[1] += probability * DRAWS
    if rare[1] >= 5:
        cells.append((rare[0], rare[1]))
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in cells), len(cells) - 1


@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 7},
        {"top_p": 0.8},
        {"top_k": 20, "top_p": 0.9, "temperature": 1.4},
        {"min_p": 0.1},
        {"min_p": 0.05, "top_p": 0.95},
        {"typical_p": 0.7},
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"logit_bias": {5: 2.0, 6: -math.inf}},
    ],
    ids=str,
)
def test_draws_are_distributed_as_the_rules_say(rules: dict[str, Any]) -> None:
    """20,000 draws pass a chi-square test, and nothing is drawn that a filter has cut."""
    made = [9, 9, 4]
    expected = reference(made, **rules)

    found = drawn(made, **rules)

    assert {token for token in found if expected[token] == 0} == set()
    statistic, freedom = chi_square(found, expected)
    # Wilson and Hilferty: the 99.99 % quantile of chi-square; the draws are the same in every run
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


#: transformers' own processors by our parameters, in its order.
PROCESSORS: dict[str, Any] = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": TypicalLogitsWarper,
}


@given(
    rules=st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.sampled_from([0.5, 1.3, 4.0]),
            "temperature": st.sampled_from([0.3, 0.9, 1.9]),
            "top_k": st.integers(1, 60),
            "top_p": st.sampled_from([0.05, 0.5, 0.9, 0.99]),
            "min_p": st.sampled_from([0.01, 0.1, 0.6]),
            "typical_p": st.sampled_from([0.05, 0.5, 0.95]),
        },
    ),
    seed=st.integers(0, 10**6),
)
def test_the_choice_is_transformers_own(rules: dict[str, Any], seed: int) -> None:
    """What is drawn is what the processors of transformers leave, as often as they make it likely."""
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)) * 3
    made = [PROCESSORS[name](rules[name]) for name in PROCESSORS if name in rules]
    left = LogitsProcessorList(made)(torch.tensor([PROMPT]), logits.clone()).softmax(-1)[0]
    samplers = [RowSampler(Sampling(seed=row, **rules), PROMPT) for row in range(100)]

    sampler = Sampler(samplers, torch.device("cpu"))
    found = Counter(token for _ in range(3) for token in sampler.choose(logits.repeat(100, 1)))

    assert {token for token in found if left[token] == 0} == set()
    for token, share in enumerate(left.tolist()):
        assert found[token] / 300 == pytest.approx(share, abs=5 * math.sqrt(share / 300) + 0.01)


def test_a_seed_gives_the_same_alone_and_in_a_batch() -> None:
    """What a row draws does not depend on the rows beside it."""
    rules = [
        {"top_p": 0.9},
        {"temperature": 0.0},
        {"top_k": 5},
        {"min_p": 0.02},
        {"typical_p": 0.9},
        {"mirostat": 2},
        {"mirostat": 1},
    ]
    steps = [torch.randn(len(rules), SIZE) * 2 for _ in range(20)]

    def texts(places: list[int]) -> list[list[int]]:
        samplers = [RowSampler(Sampling(seed=11, **rules[place]), PROMPT) for place in places]
        sampler = Sampler(samplers, torch.device("cpu"))
        columns = [sampler.choose(step[places].clone()) for step in steps]
        return [list(row) for row in zip(*columns, strict=True)]

    together = texts(list(range(len(rules))))

    assert together == [texts([place])[0] for place in range(len(rules))]


def test_a_flat_distribution_keeps_its_whole_nucleus() -> None:
    """top_p reaches beyond the first candidates where the vocabulary is large and flat."""
    logits = torch.zeros(1, 4000)
    samplers = [RowSampler(Sampling(seed=seed, top_p=0.5), [0]) for seed in range(400)]

    found = Sampler(samplers, torch.device("cpu")).choose(logits.repeat(400, 1))

    assert len(set(found)) > 300


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_surprises_as_much_as_it_is_told(version: int) -> None:
    """The choice among what mirostat keeps is as surprising as its target, in the mean."""
    logits = torch.randn(2000) * 2
    row = RowSampler(Sampling(seed=5, mirostat=version, mirostat_tau=4.0), [0])
    sampler = Sampler([row], torch.device("cpu"))

    found = Counter(sampler.choose(logits[None].clone())[0] for _ in range(900))

    parts = [count / 900 for count in found.values()]
    assert pytest.approx(4.0, abs=0.25) == -sum(part * math.log2(part) for part in parts)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("tau", "eta"), [(0.0, 100.0), (100.0, 100.0), (0.0, 0.0)])
def test_mirostat_survives_any_target(version: int, tau: float, eta: float) -> None:
    """Targets and rates at the ends of what a request may say choose tokens all the same."""
    rules = Sampling(seed=5, mirostat=version, mirostat_tau=tau, mirostat_eta=eta)
    sampler = Sampler([RowSampler(rules, [0])], torch.device("cpu"))

    found = [sampler.choose(LOGITS[None].clone())[0] for _ in range(50)]

    assert all(0 <= token < SIZE for token in found)


@pytest.mark.parametrize("spread", [0.01, 1e-6, 0.0])
def test_mirostat_survives_flat_logits(spread: float) -> None:
    """Where all tokens are nearly alike, Zipf's exponent is nearly 0, and all of them may be kept."""
    logits = torch.linspace(0, spread, 1000)[None]
    rules = Sampling(seed=5, mirostat=1, mirostat_tau=10.0)
    sampler = Sampler([RowSampler(rules, [0])], torch.device("cpu"))

    found = [sampler.choose(logits.clone())[0] for _ in range(50)]

    assert len(set(found)) > 40


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-40, 1e-30, 1e-6])
@pytest.mark.parametrize(
    "rules",
    [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.9}, {"mirostat": 2}],
    ids=str,
)
def test_the_coldest_temperatures_are_greedy(temperature: float, rules: dict[str, Any]) -> None:
    """A temperature by which nothing can be divided takes the likeliest token, as 0 does."""
    row = RowSampler(Sampling(seed=5, temperature=temperature, **rules), [0])

    assert [int(LOGITS.argmax())] == Sampler([row], torch.device("cpu")).choose(
        LOGITS[None].clone()
    )


@pytest.mark.parametrize("value", [-math.inf, math.nan])
@pytest.mark.parametrize(
    "rules",
    [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.9}, {"mirostat": 2}],
    ids=str,
)
def test_logits_that_are_none_choose_some_token(value: float, rules: dict[str, Any]) -> None:
    """Where nothing can be chosen a token comes all the same: the rows beside it have to go on."""
    row = RowSampler(Sampling(seed=5, **rules), [0])

    (found,) = Sampler([row], torch.device("cpu")).choose(torch.full((1, SIZE), value))

    assert 0 <= found < SIZE


def test_repeat_last_n_bounds_what_penalties_see() -> None:
    """A token outside of the window is not penalised."""
    rules = Sampling(temperature=0.0, repetition_penalty=10.0, repeat_last_n=1)
    row = RowSampler(rules, PROMPT)

    assert [PROMPT[0]] == Sampler([row], torch.device("cpu")).choose(LOGITS[None].clone())


def test_log_probabilities() -> None:
    """They are the model's own, with as many alternatives as were asked for."""
    found = logprobs(LOGITS[None], [2], [3])[0]

    values = LOGITS.log_softmax(-1)
    assert found.value == pytest.approx(float(values[3]))
    assert [token for token, _ in found.top] == LOGITS.topk(2).indices.tolist()
