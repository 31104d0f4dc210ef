"""Tests of unilect.engines.transformers.batch.loop and what it is made of, on the bundled model: the same text as transformers' own generate."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.models.torchside import SETTINGS, Asked, need, running

need("torch", "transformers")

import torch

from unilect.engines.transformers.batch import cache as _cache
from unilect.engines.transformers.batch import loop as _loop
from unilect.engines.transformers.batch.cache import BatchKVCache
from unilect.engines.transformers.batch.loop import BatchLoop
from unilect.engines.transformers.batch.prefill import Prefill, prefills
from unilect.engines.transformers.job import Failed, PromptRead, Sampling, Step
from unilect.engines.transformers.model.load import LoadedModel

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
    return generated_all(model, prompt, count, **how)[0]


def generated_all(
    model: LoadedModel, prompt: list[int], count: int = 24, **how: Any
) -> list[list[int]]:
    """All answers of transformers' own generate, the best first."""
    with torch.inference_mode():
        ids = model._model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=list(model.stop_ids),
            **how,
        )
    answers = ids[:, len(prompt) :].tolist()
    return [[token for token in answer if token not in model.stop_ids] for answer in answers]


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


def test_owners_share_nothing(model: LoadedModel, loop: BatchLoop) -> None:
    """Another owner's prompt is read as if nobody had sent it, also where both come at once; an own one is known."""
    prompt = prompts(model)[5]
    at_once = [Asked(prompt, owner=owner) for owner in ("ada", "bob")]
    for one in at_once:
        loop.submit(one.job)
    texts = {tuple(one.wait()) for one in at_once}
    later = [Asked(prompt, owner=owner) for owner in ("bob", "cy", "ada")]
    texts |= {tuple(one.answer(loop)) for one in later}

    known = len(prompt) - 1
    assert [0, 0] == [one.cached for one in at_once]
    assert [known, 0, known] == [one.cached for one in later]
    assert 1 == len(texts)


def test_an_answer_that_went_on_is_kept_once(model: LoadedModel, loop: BatchLoop) -> None:
    """A prompt that is sent again after its answer takes no more room: what went on from it holds it."""
    prompt = prompts(model)[5]
    for _ in range(3):
        Asked(prompt).answer(loop)
    known = loop._prefixes._known

    assert 1 == len(known)
    assert len(known[0].tokens) > len(prompt)


def test_nothing_is_copied_to_be_forgotten(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cache of prompts no answer's keys and values are copied, and nobody waits to share a prompt."""
    copied: list[int] = []
    monkeypatch.setattr(BatchKVCache, "states", lambda cache, row: copied.append(row))
    made = BatchLoop(model, parallel=4, context=512, chunk=64, remember=0)
    asked = [Asked(prompts(model)[5]) for _ in range(3)]
    for one in asked:
        made.submit(one.job)
    made._admit()
    assert 3 == made.running
    with running(made):
        answers = [one.wait() for one in asked]

    assert [generated(model, asked[0].job.prompt)] * 3 == answers
    assert [] == copied


def test_prompts_that_come_together(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing runs, a prompt waits for one that is still being prepared, and both are read in one."""
    monkeypatch.setattr(_loop, "_GATHER_S", 60.0)
    read: list[int] = []
    step = Prefill.step
    monkeypatch.setattr(
        Prefill,
        "step",
        lambda prefill, *given: read.append(len(prefill.jobs)) or step(prefill, *given),
    )
    first, second = Asked(prompts(model)[0]), Asked(prompts(model)[2])
    made = BatchLoop(model, parallel=4, context=512, chunk=512, remember=0)
    with running(made):
        made.announce(2)
        made.submit(first.job)
        made.announce(-1)
        made.submit(second.job)
        made.announce(-1)
        first.wait()
        second.wait()

    assert [2] == read


def test_nobody_waits_for_prompts_in_vain(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a prompt is being prepared that never comes, calls are made and a full batch is read at once."""
    monkeypatch.setattr(_loop, "_GATHER_S", 60.0)
    made = BatchLoop(model, parallel=1, context=512, chunk=64, remember=0)
    made.announce(1)
    with running(made):
        assert 0 == made.call(lambda: made.running).result(30)
        asked = Asked(prompts(model)[0])
        made.submit(asked.job)

        assert generated(model, asked.job.prompt) == asked.wait()


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


def order_of(model: LoadedModel, lengths: list[int], later: list[int]) -> list[int]:
    """Prompts of these lengths come at once, others when the first of them is being read: the length of the one that each word is about."""
    tokens = model.tokenizer("A cat and a dog live in a house. " * 40)["input_ids"]
    loop = BatchLoop(model, parallel=4, context=2048, chunk=16, remember=0)
    order: list[int] = []
    asked = [Asked(tokens[:length], 1, reuse=False) for length in lengths]
    late = [Asked(tokens[:length], 1, reuse=False) for length in later]
    for one in (*asked, *late):
        tell = one.job.emit

        def emit(word: Any, one: Asked = one, tell: Any = tell) -> None:
            if not order:
                for other in late:
                    loop.submit(other.job)
            order.append(len(one.job.prompt))
            tell(word)

        one.job.emit = emit
    for one in asked:
        loop.submit(one.job)
    with running(loop):
        for one in (*asked, *late):
            one.wait()
    return order


def test_the_shortest_of_those_that_come_at_once_is_read_first(model: LoadedModel) -> None:
    """A prompt is read to its end before the next begins, the shortest first."""
    order = order_of(model, [300, 30, 64], [])

    assert [30] * order.count(30) == order[: order.count(30)]
    assert [64] * order.count(64) == order[order.count(30) :][: order.count(64)]


def test_a_long_prompt_lets_others_pass(model: LoadedModel) -> None:
    """A prompt that comes later is read after the fourth chunk of a long one."""
    order = order_of(model, [300], [30])

    assert [300] * 4 + [30] == order[:5]
    assert 300 == order[-1]


def test_prompts_of_about_one_length_are_read_together(model: LoadedModel) -> None:
    """Prompts between which others have come are read in one, where they are about as long."""
    tokens = model.tokenizer("A cat and a dog live in a house. " * 40)["input_ids"]
    found = [(Asked(tokens[:length], 1, reuse=False).job, None) for length in (20, 90, 25, 100, 21)]
    together, alone = (prefills(found, each, torch.device("cpu")) for each in (False, True))

    assert [[20, 21, 25], [90, 100]] == [
        [len(job.prompt) for job in prefill.jobs] for prefill in together
    ]
    assert [1] * 5 == [len(prefill.jobs) for prefill in alone]


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


def test_several_beams_are_those_of_generate(model: LoadedModel, loop: BatchLoop) -> None:
    """The best answers of one search are those that generate returns, in their order."""
    prompt = prompts(model)[3]
    asked = Asked(prompt, sampling=Sampling(num_beams=4), choices=3)
    asked.answer(loop)
    loop.call(lambda: None).result(60)  # all of them have been told by then

    steps = [word for word in asked.outputs if isinstance(word, Step)]
    how = {"num_beams": 4, "early_stopping": True, "num_return_sequences": 3}
    assert generated_all(model, prompt, **how) == [step.tokens for step in steps]
    assert [0, 1, 2] == [step.choice for step in steps]


def test_beams_are_not_mixed_up_when_others_leave(model: LoadedModel, loop: BatchLoop) -> None:
    """A search goes on with its own beams when a row beside it ends and another takes its place."""
    short = Asked(prompts(model)[1], 6, ignore_eos=True)
    beams = Asked(prompts(model)[3], 24, sampling=Sampling(num_beams=3))
    gate = threading.Event()
    loop.call(gate.wait)
    for one in (short, beams):
        loop.submit(one.job)
    gate.set()

    expected = generated(model, beams.job.prompt, num_beams=3, early_stopping=True)
    assert expected == beams.wait()


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


@pytest.mark.parametrize("beams", [1, 2])
def test_no_end_is_chosen_where_ends_are_ignored(
    model: LoadedModel, loop: BatchLoop, beams: int
) -> None:
    """`ignore_eos` forbids the ends of a turn as it does the model's own."""
    prompt = prompts(model)[3]
    end = Asked(prompt).answer(loop)[2]
    rules = Sampling(temperature=0.0, num_beams=beams)
    asked = Asked(prompt, 24, sampling=rules, ignore_eos=True, stop_ids=frozenset({end}))

    found = asked.answer(loop)

    assert (24, "length") == (len(found), asked.finish)
    assert end not in found


def test_log_probabilities_of_a_prompt(model: LoadedModel, loop: BatchLoop) -> None:
    """Each token of a prompt but the first is told with its log probability, however it is read."""
    prompt = prompts(model)[5]
    asked = Asked(prompt, 1, logprobs=1, prompt_logprobs=True)
    asked.answer(loop)

    told = [one for word in asked.outputs if isinstance(word, PromptRead) for one in word.logprobs]
    with torch.inference_mode():
        values = model._model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [float(values[place, token]) for place, token in enumerate(prompt[1:])]
    assert expected == pytest.approx([one.value for one in told], abs=1e-4)
    assert prompt[1:] == [one.token for one in told]


class Fragile:
    """The model, but for what a test breaks: a step (`forward`) raises, or makes no numbers."""

    def __init__(self, model: LoadedModel, error: Exception | None = None) -> None:
        self._model = model
        self.device, self.stop_ids, self.windowed = model.device, model.stop_ids, False
        self.error = error
        self.spoilt: int | None = None

    def forward(self, ids: Any, *args: Any, **named: Any) -> Any:
        """As the model does, where nothing is broken."""
        if self.error is not None and len(ids[0]) == 1:
            raise self.error
        logits = self._model.forward(ids, *args, **named)
        if self.spoilt is not None and len(ids[0]) == 1:
            logits = logits.clone()
            logits[self.spoilt] = float("nan")
        return logits


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), IndexError(), AssertionError()])
def test_a_failure_of_the_model_ends_what_ran_and_nothing_else(
    model: LoadedModel, error: Exception
) -> None:
    """When a step fails, however it does, running answers are told so, and later ones are answered."""
    fragile = Fragile(model, error)
    with running(BatchLoop(fragile, parallel=2, context=512, chunk=64, remember=0)) as loop:
        first = Asked(prompts(model)[3])
        first.answer(loop)
        fragile.error = None
        second = Asked(prompts(model)[1])

        assert isinstance(first.outputs[-1], Failed)
        assert generated(model, second.job.prompt) == second.answer(loop)


class Small(Fragile):
    """The model with memory for no more than some columns of prompts in one step."""

    def __init__(self, model: LoadedModel, most: int) -> None:
        super().__init__(model)
        self.most = most

    def forward(self, ids: Any, *args: Any, **named: Any) -> Any:
        """As the model does, where there is memory for it."""
        if len(ids[0]) > 1 and ids.numel() > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return super().forward(ids, *args, **named)


def test_a_prompt_for_which_there_is_no_memory(model: LoadedModel) -> None:
    """It is refused alone: what runs goes on, and those that were read together with it are answered, all with the same text."""
    most = max(map(len, prompts(model)))
    with running(BatchLoop(Small(model, most), parallel=8, context=512, chunk=500, remember=2048)) as loop:  # fmt: skip
        runs = Asked(prompts(model)[3])
        loop.submit(runs.job)
        assert runs.first.wait(60)
        together = [Asked(prompts(model)[place]) for place in (1, 2, 5)]
        too_long = Asked([*prompts(model)[5], *prompts(model)[3]][::-1])
        for one in (*together, too_long):
            loop.submit(one.job)

        for one in (runs, *together):
            assert generated(model, one.job.prompt) == one.wait()
        too_long.wait()
        again = Asked(prompts(model)[1])
        assert generated(model, again.job.prompt) == again.answer(loop)
    refused = too_long.outputs[-1]
    assert isinstance(refused, Failed)
    assert refused.of_memory


@pytest.mark.parametrize("beams", [1, 3])
def test_no_memory_for_one_answer_more(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, beams: int
) -> None:
    """An answer for whose states there is no room ends alone, though some of the room was made, and the others go on with the same text."""
    larger, grown = _cache._larger, []

    def fails(*args: Any) -> Any:
        grown.append(args)
        if len(grown) > 2:
            raise MemoryError
        return larger(*args)

    with running(BatchLoop(model, parallel=8, context=512, chunk=500, remember=0)) as loop:
        runs = [Asked(prompts(model)[place], 120, ignore_eos=True) for place in (0, 3)]
        alone = [Asked(one.job.prompt, 120, ignore_eos=True).answer(loop) for one in runs]
        for one in runs:
            loop.submit(one.job)
        assert all(one.first.wait(60) for one in runs)
        loop.call(lambda: None).result()  # by now they run
        late = Asked(prompts(model)[5], sampling=Sampling(temperature=0.0, num_beams=beams))
        monkeypatch.setattr(_cache, "_larger", fails)
        loop.submit(late.job)
        late.wait()
        monkeypatch.setattr(_cache, "_larger", larger)
        next_one = Asked(prompts(model)[5])

        assert generated(model, next_one.job.prompt) == next_one.answer(loop)
        assert alone == [one.wait() for one in runs]
    assert 3 == len(grown)
    assert isinstance(late.outputs[-1], Failed)


@pytest.mark.parametrize("where", ["prefill.Prefill", "cache.BatchKVCache.join"])
def test_a_failure_between_the_steps_is_told(
    model: LoadedModel, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that runs out while prompts are taken in, or join the batch, leaves nobody without an end."""

    def fails(*args: Any) -> None:
        raise MemoryError

    with running(BatchLoop(model, parallel=4, context=512, chunk=64, remember=0)) as loop:
        with monkeypatch.context() as patch:
            patch.setattr(f"unilect.engines.transformers.batch.{where}", fails)
            asked = [Asked(prompt) for prompt in prompts(model)]
            for one in asked:
                loop.submit(one.job)
            for one in asked:
                one.wait()
        assert all(isinstance(one.outputs[-1], Failed) for one in asked)
        later = Asked(prompts(model)[1])

        assert generated(model, later.job.prompt) == later.answer(loop)


def test_numbers_that_ran_over_stay_with_their_answer(model: LoadedModel) -> None:
    """An answer whose logits are no numbers fails, and the ones beside it go on."""
    fragile = Fragile(model)
    rules = Sampling(temperature=1.0, seed=3, top_p=0.9)
    with running(BatchLoop(fragile, parallel=2, context=512, chunk=64, remember=0)) as loop:
        broken = Asked(prompts(model)[3], 400, ignore_eos=True, sampling=rules)
        loop.submit(broken.job)
        assert broken.first.wait(60)
        whole = Asked(prompts(model)[1])
        loop.submit(whole.job)
        assert whole.first.wait(60)
        fragile.spoilt = 0
        broken.wait()
        fragile.spoilt = None

        assert isinstance(broken.outputs[-1], Failed)
        assert generated(model, whole.job.prompt) == whole.wait()


def test_beams_whose_numbers_ran_over_fail(model: LoadedModel) -> None:
    """A search in which one beam's logits are no numbers is given up, and its rows are free."""
    fragile = Fragile(model)
    with running(BatchLoop(fragile, parallel=3, context=512, chunk=64, remember=0)) as loop:
        fragile.spoilt = 0
        broken = Asked(prompts(model)[3], sampling=Sampling(num_beams=3))
        broken.answer(loop)
        fragile.spoilt = None
        whole = Asked(prompts(model)[3], sampling=Sampling(num_beams=3))

        expected = generated(model, whole.job.prompt, num_beams=3, early_stopping=True)
        assert expected == whole.answer(loop)
    assert isinstance(broken.outputs[-1], Failed)
    assert [] == broken.tokens


def test_calls_between_the_steps(loop: BatchLoop) -> None:
    """A call that raises tells its caller, one that was cancelled is not made, and a first one goes before others."""

    def fails() -> None:
        raise KeyError("x")

    gate = threading.Event()
    order: list[str] = []
    loop.call(gate.wait)
    cancelled = loop.call(lambda: order.append("never"))
    calls = [loop.call(fails), loop.call(lambda: order.append("then"))]
    first = loop.call(lambda: order.append("first"), first=True)
    assert cancelled.cancel()
    gate.set()
    first.result(60)

    with pytest.raises(KeyError):
        calls[0].result(60)
    calls[1].result(60)
    assert ["first", "then"] == order


def test_answers_of_an_adapter_end_with_it(model: LoadedModel, loop: BatchLoop) -> None:
    """Who is answered, or waits, with an adapter that goes is told so; the others go on."""
    theirs = [Asked(prompts(model)[3], 480, ignore_eos=True, adapter="x") for _ in range(5)]
    for one in theirs:
        loop.submit(one.job)
    assert theirs[0].first.wait(60)
    other = Asked(prompts(model)[1])
    loop.submit(other.job)
    loop.call(lambda: loop.end("x"))

    assert generated(model, other.job.prompt) == other.wait()
    for one in theirs:
        one.wait()
    assert all(isinstance(one.outputs[-1], Failed) for one in theirs)


def test_who_is_behind_waits_alone(model: LoadedModel) -> None:
    """An answer whose reader is behind gives its row to others, and goes on where it was."""
    made = BatchLoop(model, parallel=1, context=512, chunk=64, remember=0)
    with running(made) as loop:
        slow, quick = (Asked(prompt) for prompt in prompts(model)[3:5])
        slow.job.backpressured = True
        loop.submit(slow.job)
        assert slow.first.wait(60)
        answer = quick.answer(loop)
        before = len(slow.tokens)
        slow.job.backpressured = False
        loop.wake()

        assert generated(model, slow.job.prompt) == slow.wait()
    assert before < 24
    assert generated(model, quick.job.prompt) == answer


def test_not_everybody_can_be_behind(model: LoadedModel) -> None:
    """As many answers wait for their readers as can run; one more is given up, and one that is left makes room."""
    made = BatchLoop(model, parallel=1, context=512, chunk=64, remember=0)
    with running(made) as loop:
        first, second, third = (Asked(prompt) for prompt in prompts(model)[3:6])
        for one in (first, second, third):
            one.job.backpressured = True
        loop.submit(first.job)
        assert first.first.wait(60)
        loop.submit(second.job)
        assert second.over.wait(60)
        first.job.cancelled = True
        loop.submit(third.job)
        assert third.first.wait(60)
        third.job.backpressured = False
        loop.wake()

        assert generated(model, third.job.prompt) == third.wait()
    assert isinstance(second.outputs[-1], Failed)
    assert second.outputs[-1].of_reader
    assert first.finish is None
