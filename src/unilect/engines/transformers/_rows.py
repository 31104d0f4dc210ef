"""
The rows of a running batch: the answers that get their next tokens together, and the choice of these tokens.
"""

from torch import Tensor

from unilect.engines.transformers._beams import Beams
from unilect.engines.transformers._job import Failed, Job, Reason, Step
from unilect.engines.transformers._prefill import Model
from unilect.engines.transformers._sampling import RowSampler, Sampler, logprobs

RAN_OVER = "The model produced NaN logits for this request."
_NOTHING_LEFT = "No valid next token: the grammar and `logit_bias` exclude the whole vocabulary."


class Row:
    """One running answer."""

    def __init__(
        self, job: Job, sampler: RowSampler, beams: Beams | None = None, number: int = 0
    ) -> None:
        self.job = job
        self.sampler = sampler
        self.beams = beams
        self.number = number  # among the beams; rows change their places when others leave
        self.last = 0


class Chooser:
    """
    Chooses the next tokens of rows.

    Args:
        model: What has made the logits.
        context: The most tokens of prompt and answer.
    """

    def __init__(self, model: Model, context: int) -> None:
        self._model = model
        self._context = context

    def choose(self, rows: list[Row], sampler: Sampler, logits: Tensor) -> list[Reason | None]:
        """
        Choose and deliver the next token of each row.

        Returns:
            For each row why it has ended, or None.
        """
        wanted = [row.job.logprobs for row in rows]
        before = logits.clone() if any(count is not None for count in wanted) else None
        failed: dict[int, Failed] = {}
        for place, broken in enumerate(logits[:, 0].isnan().tolist()):
            if broken:  # one number of a state that is none makes all logits so, and the choice fail for all rows
                failed[place] = Failed(RAN_OVER)
                logits[place] = 0.0
        for place, row in enumerate(rows):
            if row.job.constraint is not None:
                try:
                    row.job.constraint.mask(logits[place])
                except ValueError as error:
                    failed[place] = Failed(str(error), of_request=True)
        tokens = sampler.choose(logits)
        told = logprobs(before, wanted, tokens) if before is not None else None
        reasons: list[Reason | None] = []
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            reason: Reason | None = "stop"
            bound = row.job.constraint is not None or row.sampler.edits
            if bound and logits[place, token] == float("-inf"):
                failed.setdefault(place, Failed(_NOTHING_LEFT, of_request=True))
            if place not in failed:
                try:
                    reason = self._take(row, token)
                except ValueError as error:
                    failed[place] = Failed(str(error), of_request=True)
            reasons.append(reason)
            if place in failed:
                row.job.emit(row.job, failed[place])
                continue
            ends = reason == "stop" and token in self._model.stop_ids | row.job.stop_ids
            shown = [told[place]] if told is not None and wanted[place] is not None else []
            scores = row.job.prompt_logprobs  # who scores a text counts on one more token
            row.job.emit(row.job, Step([] if ends else [token], shown if scores or not ends else [], reason))  # fmt: skip
        return reasons

    def _take(self, row: Row, token: int) -> Reason | None:
        """Note a token; why the answer ends with it, if it does."""
        row.last = token
        row.sampler.made.append(token)
        ends = token in row.job.stop_ids or token in self._model.stop_ids
        if row.job.constraint is not None:
            ends = row.job.constraint.accept(token, ends)
        if ends:
            return "stop"
        return "length" if len(row.sampler.made) >= self.limit(row.job) else None

    def limit(self, job: Job) -> int:
        """The most tokens that the answer may have."""
        return min(job.max_tokens, self._context - len(job.prompt))
