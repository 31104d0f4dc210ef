"""
The rows of a running batch: the answers that get their next tokens together, and the choice of these tokens.
"""

from torch import Tensor

from unilect.engines.transformers.batch.beams import Beams
from unilect.engines.transformers.batch.prefill import Model
from unilect.engines.transformers.batch.sampling import RowSampler, Sampler, logprobs
from unilect.engines.transformers.job import Failed, Job, Logprob, Reason, Step

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
        broken = logits[:, 0].isnan().tolist()
        for place, row in enumerate(rows):
            if broken[place]:  # one NaN would make the choice fail for all rows
                failed[place] = Failed(RAN_OVER)
                logits[place] = 0.0
            elif row.job.constraint is not None:
                try:
                    row.job.constraint.mask(logits[place])
                except ValueError as error:
                    failed[place] = Failed(str(error), of_request=True)
        tokens = sampler.choose(logits)
        told = logprobs(before, wanted, tokens) if before is not None else None
        reasons: list[Reason | None] = []
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            output: Step | Failed | None = failed.get(place)
            if output is None:
                try:
                    shown = [told[place]] if told is not None and wanted[place] is not None else []
                    output = self._take(row, token, logits[place], shown)
                except ValueError as error:
                    output = Failed(str(error), of_request=True)
            reasons.append(output.finish if isinstance(output, Step) else "stop")
            row.job.emit(output)
        return reasons

    def _take(self, row: Row, token: int, logits: Tensor, shown: list[Logprob]) -> Step:
        """
        Note the next token of a row, and tell of it.

        Raises:
            ValueError: The request allows no token.
        """
        job = row.job
        if (job.constraint is not None or row.sampler.edits) and logits[token] == float("-inf"):
            raise ValueError(_NOTHING_LEFT)
        row.last = token
        row.sampler.made.append(token)
        is_end = ends = token in job.stop_ids or token in self._model.stop_ids
        if job.constraint is not None:
            ends = job.constraint.accept(token, ends)
        if ends:
            scores = job.prompt_logprobs  # who scores a text counts on one more token
            return Step([] if is_end else [token], shown if scores or not is_end else [], "stop")
        over = len(row.sampler.made) >= self.limit(job)
        return Step([token], shown, "length" if over else None)

    def limit(self, job: Job) -> int:
        """The most tokens that the answer may have."""
        return min(job.max_tokens, self._context - len(job.prompt))
