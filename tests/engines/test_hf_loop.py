"""Tests of unilect.engines._hf_loop and what it is made of, on the bundled model: the same text as transformers' own generate."""

from collections.abc import Iterator
from typing import Any

import pytest

from torchside import SETTINGS, Asked, need, running

need("torch", "transformers")

import torch

from unilect.engines._hf_job import Failed, PromptRead, Sampling
from unilect.engines._hf_load import LoadedModel
from unilect.engines._hf_loop import BatchLoop

QUESTIONS = [
    "Hello!",
    "What is the capital of France?",
    "告诉我中国的首都在哪里",
    "Tell me a story about a dog.",
    "What is 3 + 4?",
    "Write a story of a red dragon and a small cat who live together in the woods near a river.",
]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """The bundled model."""
    torch.set_num_threads(1)
    return LoadedModel(SETTINGS)


@pytest.fixture(params=[64, 5])
def loop(model: LoadedModel, request: pytest.FixtureRequest) -> Iterator[BatchLoop]:
    """A batch of four rows that reads prompts in chunks of this many tokens."""
    made = BatchLoop(model, parallel=4, context=512, chunk=request.param, remember=2048)
    with running(made):
        yield made


def prompts(model: LoadedModel) -> list[list[int]]:
    """The questions as tokens."""
    return [
        model.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True
        )["input_ids"]
        for question in QUESTIONS
    ]


def generated(model: LoadedModel, prompt: list[int], count: int = 24, **how: Any) -> list[int]:
    """What transformers' own generate answers, greedily."""
    with torch.inference_mode():
        ids = model._model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=list(model.stop_ids),
            **how,
        )
    return [token for token in ids[0, len(prompt) :].tolist() if token not in model.stop_ids]


def test_answers_are_those_of_generate(model: LoadedModel, loop: BatchLoop) -> None:
    """Answers that join and leave a running batch are the ones that generate gives alone."""
    asked = [Asked(prompt) for prompt in prompts(model) * 2]
    for one in asked:
        loop.submit(one.job)

    assert [generated(model, one.job.prompt) for one in asked] == [one.wait() for one in asked]


def test_a_known_prompt_is_not_read_again(model: LoadedModel, loop: BatchLoop) -> None:
    """A conversation goes on from what was kept, with the same text; a request may forbid it."""
    prompt = prompts(model)[5]
    first = Asked(prompt)
    longer = [*prompt, *first.answer(loop), *prompts(model)[1]]
    second, third = Asked(longer), Asked(longer, reuse=False)

    assert generated(model, longer) == second.answer(loop) == third.answer(loop)
    assert second.cached >= len(prompt) + len(first.tokens) - 1
    assert third.cached == 0


def test_the_same_prompt_at_once_is_read_once(model: LoadedModel, loop: BatchLoop) -> None:
    """Of several answers to one prompt, all but the first know it."""
    asked = [Asked(prompts(model)[5]) for _ in range(4)]
    for one in asked:
        loop.submit(one.job)

    assert len({tuple(one.wait()) for one in asked}) == 1
    assert [0] + [len(asked[0].job.prompt) - 1] * 3 == [one.cached for one in asked]


def test_cancelling_frees_the_row(model: LoadedModel, loop: BatchLoop) -> None:
    """Who leaves is not answered further, and who waits gets the row."""
    hogs = [Asked(prompts(model)[3], 480, ignore_eos=True) for _ in range(4)]
    for hog in hogs:
        loop.submit(hog.job)
        assert hog.first.wait(60)
    patient = Asked(prompts(model)[1])
    loop.submit(patient.job)
    for hog in hogs[1:]:
        hog.job.cancelled = True

    assert generated(model, patient.job.prompt) == patient.wait()
    assert not any(hog.over.is_set() for hog in hogs[1:])
    hogs[0].job.cancelled = True


def test_a_long_prompt_stops_nobody(model: LoadedModel, loop: BatchLoop) -> None:
    """While a prompt is read in chunks, others are answered, and it can be given up."""
    long = Asked(prompts(model)[5] * 16, reuse=False)
    short = Asked(prompts(model)[1])
    loop.submit(long.job)
    loop.submit(short.job)
    short.wait()
    long.job.cancelled = True
    last = Asked(prompts(model)[0])

    assert generated(model, last.job.prompt) == last.answer(loop)


def test_sampling_with_a_seed_repeats_in_any_company(model: LoadedModel, loop: BatchLoop) -> None:
    """One seed gives one text, alone or beside others; other seeds give others."""
    rules = Sampling(temperature=1.0, seed=3, top_p=0.95)
    alone = Asked(prompts(model)[3], sampling=rules).answer(loop)
    crowd = [
        Asked(prompts(model)[3], sampling=Sampling(temperature=1.0, seed=seed, top_p=0.95))
        for seed in range(8)
    ]
    for one in crowd:
        loop.submit(one.job)

    assert alone == crowd[3].wait()
    assert len({tuple(one.wait()) for one in crowd}) > 4


def test_beams_are_those_of_generate(model: LoadedModel, loop: BatchLoop) -> None:
    """Beam search beside other answers finds what generate finds."""
    rules = Sampling(num_beams=4)
    beams = [Asked(prompt, sampling=rules) for prompt in prompts(model)]
    plain = Asked(prompts(model)[1])
    for one in [*beams[:3], plain, *beams[3:]]:
        loop.submit(one.job)

    assert generated(model, plain.job.prompt) == plain.wait()
    expected = [
        generated(model, prompt, num_beams=4, early_stopping=True) for prompt in prompts(model)
    ]
    assert expected == [one.wait() for one in beams]


def test_limits_and_ends(model: LoadedModel, loop: BatchLoop) -> None:
    """An answer ends at its limit, at the context's end and at its stop tokens, and says which."""
    prompt = prompts(model)[3]
    limited, none = Asked(prompt, 5), Asked(prompt, 0)
    ended = Asked(prompts(model)[1], 100)
    full = Asked((prompts(model)[5] * 40)[:500], 100, ignore_eos=True)

    assert [5, 0] == [len(limited.answer(loop)), len(none.answer(loop))]
    assert 12 == len(full.answer(loop))
    ended.answer(loop)
    assert ["length"] * 3 + ["stop"] == [one.finish for one in (limited, none, full, ended)]


def test_log_probabilities_of_a_prompt(model: LoadedModel, loop: BatchLoop) -> None:
    """Each token of a prompt but the first is told with its log probability, however it is read."""
    prompt = prompts(model)[5]
    asked = Asked(prompt, 1, logprobs=1, prompt_logprobs=True)
    asked.answer(loop)

    told = [one for word in asked.words if isinstance(word, PromptRead) for one in word.logprobs]
    with torch.inference_mode():
        values = model._model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [float(values[place, token]) for place, token in enumerate(prompt[1:])]
    assert expected == pytest.approx([one.value for one in told], abs=1e-4)
    assert prompt[1:] == [one.token for one in told]


def test_a_failure_of_the_model_ends_what_ran_and_nothing_else(model: LoadedModel) -> None:
    """When a step fails, running answers are told so, and later ones are answered."""

    class Fragile:
        device, stop_ids, windowed, breaks = model.device, model.stop_ids, False, True

        def forward(self, ids: Any, *args: Any, **named: Any) -> Any:
            if self.breaks and len(ids[0]) == 1:
                raise RuntimeError("out of memory")
            return model.forward(ids, *args, **named)

    fragile = Fragile()
    with running(BatchLoop(fragile, parallel=2, context=512, chunk=64, remember=0)) as loop:
        first = Asked(prompts(model)[3])
        first.answer(loop)
        fragile.breaks = False
        second = Asked(prompts(model)[1])

        assert isinstance(first.words[-1], Failed)
        assert generated(model, second.job.prompt) == second.answer(loop)
