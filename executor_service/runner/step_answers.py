"""The answers of one step as they come in."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

from common.plan import (
    TOKEN_TYPECODE,
    ErrorCode,
    PromptLogprobs,
    SequenceError,
    SequenceId,
    StepPlan,
    StepResult,
    StepTimings,
)
from executor_service.runner.sampler import Sampled
from executor_service.runner.validate import CheckedPlan, LastSamples

_MESSAGES = {
    ErrorCode.NON_FINITE: "the model's logits are not finite",
    ErrorCode.NO_CANDIDATE: "no token is left to sample from",
}


class StepAnswers:
    """Of one plan. A sequence has a token or an error, and an error stays."""

    def __init__(self, plan: StepPlan, checked: CheckedPlan) -> None:
        self._plan = plan
        self._errors: dict[SequenceId, SequenceError] = dict(checked.errors)
        self._answers: dict[int, Sampled] = {}
        self.prompt_logprobs: tuple[PromptLogprobs, ...] = ()

    def put(self, answers: Iterable[tuple[int, Sampled | ErrorCode]]) -> None:
        """Each with its index in the plan's `sampled`."""
        for index, answer in answers:
            sequence_id = self._plan.sampled[index].sequence_id
            if sequence_id in self._errors:
                continue
            if isinstance(answer, Sampled):
                self._answers[index] = answer
            else:
                self.fail(sequence_id, answer, _MESSAGES[answer])

    def fail(self, sequence_id: SequenceId, code: ErrorCode, message: str) -> None:
        error = SequenceError(sequence_id=sequence_id, code=code, message=message)
        self._errors.setdefault(sequence_id, error)

    def outcome(self) -> LastSamples:
        tokens: Mapping[SequenceId, int] = {
            self._plan.sampled[i].sequence_id: answer.token for i, answer in self._answers.items()
        }
        failed = {key: error.code for key, error in self._errors.items()}
        return LastSamples(tokens=tokens, failed=failed)

    def result(self, timings: StepTimings) -> StepResult:
        count = len(self._plan.sampled)
        answers = [self._answers.get(i) for i in range(count)]
        logprobs = [answer.logprobs if answer else None for answer in answers]
        return StepResult(
            step_id=self._plan.step_id,
            tokens=array(TOKEN_TYPECODE, (answer.token if answer else 0 for answer in answers)),
            errors=tuple(self._errors.values()),
            logprobs=logprobs if any(logprobs) else None,
            prompt_logprobs=self.prompt_logprobs,
            timings=timings,
        )
