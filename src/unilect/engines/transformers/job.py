"""
A job: one answer of a transformers model, with its input and its tokens as output. Imports neither torch nor HTTP.
"""

import re
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

#: "could not create a primitive" is oneDNN, which gets no memory for its code.
_NO_MEMORY = re.compile(
    r"(?i)out of memory|allocate memory|not enough memory|could not create a primitive"
)
Reason: TypeAlias = Literal["stop", "length"]
COLDEST = 1e-5  # below it a temperature is 0


class Sampling(Struct, frozen=True, kw_only=True):
    """
    The parameters that choose the next token. The filters work in the order of transformers: temperature, top_k, top_p, min_p, typical_p.

    Attributes:
        temperature: 0 takes the likeliest.
        top_k: 0 for all.
        repetition_penalty: Over the prompt and the answer; the other two over the answer alone.
        repeat_last_n: The number of last tokens that the penalties see; None for all.
        mirostat: 0 for none; it takes the place of the filters.
        num_beams: Above 1, beam search, which samples nothing.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int | None = None
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    num_beams: int = 1

    @property
    def greedy(self) -> bool:
        """True where the likeliest token is taken; logits divided by less are no numbers any longer."""
        return self.temperature < COLDEST

    @property
    def penalises(self) -> bool:
        """True where earlier tokens change the choice."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


class Constraint(Protocol):
    """The tokens that a grammar allows next."""

    def mask(self, logits: Any) -> None:
        """Forbid what the grammar forbids in one row of logits: (n_vocab,)."""

    def accept(self, token: int, ends: bool = False) -> bool:
        """
        Take a token in.

        Args:
            ends: It is one that ends the answer.

        Returns:
            True when the answer is at its end.

        Raises:
            ValueError: The grammar cannot be compiled any further, or is not satisfied at the end.
        """


class Logprob(Struct, frozen=True):
    """The natural logarithm of a token's probability, and the likeliest tokens at its place."""

    token: int
    value: float
    top: list[tuple[int, float]] = []


class Step(Struct, frozen=True):
    """
    One token of the answer, or its end.

    Attributes:
        tokens: New tokens; beam search brings all at once, with the end.
        finish: Why the answer ended, in the last step only.
        choice: Which answer of a beam search; each has one step, in this order.
    """

    tokens: list[int] = []
    logprobs: list[Logprob] = []
    finish: Reason | None = None
    choice: int = 0


class PromptRead(Struct, frozen=True):
    """So much of the prompt has been read, so much of it was known already; `logprobs` where they were asked for, at its end."""

    processed: int
    total: int
    cached: int
    logprobs: list[Logprob] = []


class Failed(Struct, frozen=True):
    """The answer cannot be made or finished: why, in a sentence, and whether the request is to blame, who reads it, or too little memory."""

    message: str
    of_request: bool = False
    of_reader: bool = False
    of_memory: bool = False


def lacks_memory(error: BaseException) -> bool:
    """Return True for an error of torch or Python that says that there is too little memory."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def failure(error: BaseException) -> Failed:
    """Turn an exception of the model into the reply for its client; most often memory is short."""
    if lacks_memory(error):
        return Failed(
            "Out of memory during the answer. Send a shorter request, or lower the model's `parallel` or `context`.",
            of_memory=True,
        )
    return Failed(f"The model failed during the answer: {str(error)[:200]}")


Output: TypeAlias = Step | PromptRead | Failed


class Job(Struct, kw_only=True, eq=False):
    """
    One answer to be made.

    Attributes:
        prompt: Token ids, at least one.
        max_tokens: The most tokens of the answer.
        emit: Gets each output, in the loop's thread; set before the job is handed over.
        adapter: The LoRA blend to apply, by its name.
        logprobs: How many alternatives are wanted beside each token's log probability; None for neither.
        choices: How many of the best beams are wanted.
        prompt_logprobs: They are wanted for the prompt too.
        ignore_eos: None of the tokens that end an answer is ever chosen.
        stop_ids: Tokens that end the answer beside the model's own.
        owner: Whose cached prompts are reused, and whose this one is.
        reuse: The prompt may be read from the cache, and be kept there.
        cancelled: Set by whoever no longer wants the answer.
        behind: Set while its reader has enough to read; the answer waits.
    """

    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    emit: Callable[[Output], None] = lambda output: None
    adapter: str | None = None
    logprobs: int | None = None
    choices: int = 1
    prompt_logprobs: bool = False
    ignore_eos: bool = False
    stop_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    owner: str = ""
    reuse: bool = True
    cancelled: bool = False
    backpressured: bool = False
