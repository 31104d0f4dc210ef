"""
Sampling: the next token of every row of a batch, each row with its own parameters.

1. What a row gets depends on its own logits, rules and random numbers, never on the rows beside it: the same seed gives the same text
   alone and in a batch.
2. A row that wants little costs little: the vocabulary is sorted only where a filter's tail is not within the first CANDIDATES.

Source: https://arxiv.org/abs/2007.14966 (mirostat); https://arxiv.org/abs/2202.00666 (typical)
"""

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from unilect.engines.transformers.job import Logprob, Sampling

CANDIDATES = 256
_NEVER = float("-inf")
_MAX_SURPRISE = 64.0  # bits: more than any vocabulary has
_FLATTEST = 1e-9  # of Zipf's exponents


class RowSampler:
    """
    The sampler of one row: its rules, its random numbers, its tokens.

    Args:
        prompt: The tokens before the answer.
        banned: Tokens that are never chosen.

    Attributes:
        made: The tokens of the answer so far; the caller appends.
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], banned: Sequence[int] = ()
    ) -> None:
        self.sampling = sampling
        self.made: list[int] = []
        self._prompt = prompt
        self._seen, self._tally = _Tally(), _Tally()
        if sampling.repetition_penalty != 1.0 and sampling.repeat_last_n is None:
            self._seen.add(prompt)
        # Random takes a number and its negative for the same
        self._rng = Random(None if sampling.seed is None else sampling.seed % 2**64)
        self._noted = 0  # tokens of the answer that have been counted
        self._mu = min(_MAX_SURPRISE, 2.0 * sampling.mirostat_tau)
        bias = dict(sampling.logit_bias) | dict.fromkeys(banned, _NEVER)
        self._bias_ids = torch.tensor(list(bias), dtype=torch.long)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)

    @property
    def edits(self) -> bool:
        """True where the logits are changed before anything is chosen."""
        return len(self._bias_ids) > 0 or self.sampling.penalises

    def edit(self, logits: Tensor) -> None:
        """Apply bias and penalties in place. logits: (n_vocab,)."""
        if len(self._bias_ids):
            inside = self._bias_ids < logits.shape[0]
            logits[self._bias_ids[inside].to(logits.device)] += self._bias[inside].to(logits.device)
        rules = self.sampling
        if not rules.penalises or rules.repeat_last_n == 0:
            return
        seen, tally = self._tallies(rules.repeat_last_n)
        if rules.repetition_penalty != 1.0:
            ids = seen.ids.to(logits.device)
            values = logits[ids]
            scaled = torch.where(
                values > 0, values / rules.repetition_penalty, values * rules.repetition_penalty
            )
            logits[ids] = scaled
        if self.made and (rules.presence_penalty or rules.frequency_penalty):
            ids, counts = tally.ids.to(logits.device), tally.counts.to(logits.device)
            logits[ids] -= rules.presence_penalty + rules.frequency_penalty * counts

    def _tallies(self, window: int | None) -> tuple["_Tally", "_Tally"]:
        """The tokens of prompt and answer, and those of the answer alone, as far as the penalties see."""
        if window is None:
            for tally in (self._seen, self._tally):
                tally.add(self.made[self._noted :])
            self._noted = len(self.made)
            return self._seen, self._tally
        seen, tally = _Tally(), _Tally()
        tally.add(self.made[-window:])
        seen.add(self.made[-window:])
        if (rest := window - len(self.made)) > 0:
            seen.add(self._prompt[-rest:])
        return seen, tally

    def roll(self) -> float:
        """A number from 0 to 1, below 1."""
        return self._rng.random()

    def mirostat(self, logits: Tensor) -> int:
        """Choose by mirostat 1 or 2, and learn from the surprise. logits: (n_vocab,), temperature applied."""
        rules = self.sampling
        values, ids = logits.float().sort(descending=True)
        probabilities = values.softmax(-1)
        if rules.mirostat == 1:
            keep = _mirostat_k(probabilities, self._mu)
        else:
            surprises = -probabilities.log2()
            keep = max(1, int((surprises <= self._mu).sum()))
        kept = probabilities[:keep] / probabilities[:keep].sum()
        place = int(_draw(kept[None], [self.roll()])[0])
        surprise = -math.log2(max(float(kept[place]), 1e-12))
        changed = self._mu - rules.mirostat_eta * (surprise - rules.mirostat_tau)
        self._mu = max(-_MAX_SURPRISE, min(_MAX_SURPRISE, changed))
        return int(ids[place])


class _Tally:
    """A count of each token. Kept as columns, since a long prompt is too long to go through at every step."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = torch.zeros(0, dtype=torch.long)
        self._counts = torch.zeros(0)

    @property
    def ids(self) -> Tensor:
        """Each token once."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Tensor:
        """The count of each of `ids`."""
        return self._counts[: len(self._places)]

    def add(self, tokens: Sequence[int]) -> None:
        """Count more tokens."""
        missing = len(self._places) + len(tokens) - len(self._ids)
        if missing > 0:
            more = max(missing, len(self._ids), 64)
            self._ids = torch.cat([self._ids, torch.zeros(more, dtype=torch.long)])
            self._counts = torch.cat([self._counts, torch.zeros(more)])
        if counted := Counter(tokens):
            places = [self._places.setdefault(token, len(self._places)) for token in counted]
            self._ids[places] = torch.tensor(list(counted))
            self._counts[places] += torch.tensor(list(counted.values()), dtype=torch.float32)


def _mirostat_k(probabilities: Tensor, mu: float) -> int:
    """Compute the number of tokens that mirostat 1 keeps, from Zipf's exponent of the likeliest hundred."""
    n = min(100, len(probabilities) - 1)
    if n < 1:
        return 1
    ranks = torch.arange(1, n + 1, dtype=torch.float64)
    top = probabilities[: n + 1].double().clamp_min(1e-30).cpu()
    t = ((ranks + 1) / ranks).log()
    b = (top[:-1] / top[1:]).log()
    s = max(_FLATTEST, float((t * b).sum() / (t * t).sum()))
    epsilon = s - 1
    size = len(probabilities)
    if abs(epsilon) < 1e-6:
        return 1
    k = (epsilon * 2**mu) / (1 - size**-epsilon)
    return round(math.exp(max(0.0, min(math.log(size), math.log(k) / s)))) if k > 0 else 1


class Sampler:
    """
    Chooses for rows that stay the same; make a new one when a row joins or leaves.

    Args:
        rows: One for each row of logits.
    """

    def __init__(self, rows: Sequence[RowSampler], device: torch.device) -> None:
        self._rows = rows
        self._edits = [i for i, row in enumerate(rows) if row.edits]
        rules = [row.sampling for row in rows]
        self._drawn = [i for i, one in enumerate(rules) if not one.greedy]
        self._mirostat = [i for i in self._drawn if rules[i].mirostat]
        drawn = [i for i in self._drawn if not rules[i].mirostat]
        self._draws = [
            (_Rules(some, rules, device), draw)
            for cuts, draw in ((False, _from_all), (True, _from_few))
            if (some := [i for i in drawn if _cuts(rules[i]) is cuts])
        ]

    def choose(self, logits: Tensor) -> list[int]:
        """
        The next token of each row. Changes the logits.

        Args:
            logits: (n_rows, n_vocab) float32.
        """
        for i in self._edits:
            self._rows[i].edit(logits[i])
        if len(self._drawn) < len(self._rows):
            tokens: list[int] = logits.argmax(-1).tolist()
        else:
            tokens = [0] * len(self._rows)
        for i in self._mirostat:
            row = self._rows[i]
            tokens[i] = row.mirostat(logits[i] / row.sampling.temperature)
        for rules, draw in self._draws:
            rolls = [self._rows[i].roll() for i in rules.rows]
            scaled = rules.of(logits) / rules.temperature
            for i, token in zip(rules.rows, draw(scaled, rules, rolls), strict=True):
                tokens[i] = token
        return tokens


class _Rules:
    """The rules of some rows, as columns."""

    def __init__(self, rows: list[int], rules: Sequence[Sampling], device: torch.device) -> None:
        self.rows = rows
        self._all = rows == list(range(len(rules)))
        self._rows = torch.tensor(rows, device=device, dtype=torch.long)
        self.most_k = max(rules[i].top_k for i in rows)
        self.typical = any(rules[i].typical_p < 1 for i in rows)

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device, dtype=torch.float32)[:, None]

        self.temperature = column([rules[i].temperature for i in rows])
        self.top_k = torch.tensor([rules[i].top_k for i in rows], device=device)[:, None]
        self.top_p = column([rules[i].top_p for i in rows])
        self.min_p = column([rules[i].min_p for i in rows])
        self.typical_p = column([rules[i].typical_p for i in rows])

    def of(self, logits: Tensor) -> Tensor:
        """The logits of these rows."""
        return logits if self._all else logits[self._rows]


def _cuts(rules: Sampling) -> bool:
    """True where a filter looks at the order of the tokens."""
    return rules.top_k > 0 or rules.top_p < 1 or rules.typical_p < 1


def _from_all(logits: Tensor, rules: _Rules, rolls: list[float]) -> list[int]:
    """Draw from the whole vocabulary, but for what min_p cuts."""
    probabilities = logits.softmax(-1)
    most = probabilities.amax(-1, keepdim=True)
    probabilities = probabilities.masked_fill_(probabilities < rules.min_p * most, 0.0)
    drawn: list[int] = _draw(probabilities, rolls).tolist()
    return drawn


def _from_few(logits: Tensor, rules: _Rules, rolls: list[float]) -> list[int]:
    """Draw from the likeliest tokens, as many as the filters leave."""
    size = logits.shape[-1]
    count = size if rules.typical else min(size, max(CANDIDATES, rules.most_k))
    whole = logits.logsumexp(-1, keepdim=True)
    while True:
        values, ids = logits.topk(count, -1)
        probabilities = (values - whole).exp()
        reached = probabilities.sum(-1, keepdim=True)
        open_ended = (rules.top_k == 0) & (reached < rules.top_p)
        if count == size or not bool(open_ended.any()):
            break
        count = min(size, 16 * count)  # flat: its nucleus is larger than the first candidates
    ranks = torch.arange(count, device=logits.device)[None]
    limit = torch.where(rules.top_k > 0, rules.top_k, size)
    probabilities = probabilities.masked_fill(ranks >= limit, 0.0)
    # a row without top_k has the rest of the vocabulary behind its candidates, which counts towards top_p
    kept = torch.where(rules.top_k > 0, probabilities.sum(-1, keepdim=True), 1.0)
    probabilities = probabilities / kept
    before = probabilities.cumsum(-1) - probabilities
    probabilities = probabilities.masked_fill((before >= rules.top_p) & (ranks > 0), 0.0)
    probabilities = probabilities.masked_fill(probabilities < rules.min_p * probabilities[:, :1], 0)
    if rules.typical:
        probabilities = _typical(probabilities, rules.typical_p)
    places = _draw(probabilities, rolls)
    drawn: list[int] = ids.gather(-1, places[:, None])[:, 0].tolist()
    return drawn


def _typical(probabilities: Tensor, mass: Tensor) -> Tensor:
    """Keep the tokens whose surprise is nearest to the expected one, until they have this mass."""
    normal = probabilities / probabilities.sum(-1, keepdim=True)
    surprise = -normal.clamp_min(1e-30).log()
    expected = (normal * surprise).sum(-1, keepdim=True)
    distance = (surprise - expected).abs().masked_fill(normal == 0, math.inf)
    order = distance.argsort(dim=-1, stable=True)
    ordered = normal.gather(-1, order)
    before = ordered.cumsum(-1) - ordered
    drop = (before >= mass) & (mass < 1)
    drop[:, 0] = False
    return probabilities.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), 0.0)


def _draw(probabilities: Tensor, rolls: list[float]) -> Tensor:
    """
    The place where each roll falls.

    Args:
        probabilities: (n_rows, n_places), not necessarily adding up to 1.
    """
    steps = probabilities.cumsum(-1)
    target = torch.tensor(rolls, device=steps.device, dtype=steps.dtype)[:, None] * steps[:, -1:]
    places = torch.searchsorted(steps, target, right=True)[:, 0]
    # rounding may put a roll behind the last place that has any probability
    last = (probabilities > 0).int() * torch.arange(1, steps.shape[-1] + 1, device=steps.device)
    return torch.minimum(places, last.amax(-1) - 1).clamp_min(0)


def logprobs(logits: Tensor, wanted: Sequence[int | None], tokens: Sequence[int]) -> list[Logprob]:
    """
    Log probabilities as the model gives them, before any rule.

    Args:
        logits: (n_rows, n_vocab).
        wanted: For each row how many alternatives; None where nobody asks, and nothing is worked out.
        tokens: For each row the token that was chosen.
    """
    told = [row for row, count in enumerate(wanted) if count is not None]
    found = [Logprob(token, math.nan) for token in tokens]
    if not told:
        return found
    values = (logits if len(told) == len(found) else logits[told]).float().log_softmax(-1)
    chosen = torch.tensor([tokens[row] for row in told], device=values.device)
    likely, ids = values.topk(max(1, *(wanted[row] or 0 for row in told)), -1)
    columns = (values.gather(-1, chosen[:, None])[:, 0], ids, likely)
    for row, value, *top in zip(told, *(column.tolist() for column in columns), strict=True):
        pairs = list(zip(*top, strict=True))
        found[row] = Logprob(tokens[row], value, pairs[: wanted[row] or 0])
    return found
