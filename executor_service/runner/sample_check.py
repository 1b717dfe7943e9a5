"""Looks for sampling parameters and histories that no sampler can work with."""

from __future__ import annotations

import math
from collections import Counter

from common.plan import SamplingParams, StepPlan
from executor_service.runner.findings import Findings
from executor_service.runner.penalties import reads_history
from executor_service.runner.whole_plan import all_below, are_distinct


class SampleChecker:
    """The rules for what a plan samples. Findings cost a sequence its token, not its chunk."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sound: dict[int, SamplingParams] = {}
        """Parameters that the last plan sampled by and no rule forbids, by their identity."""

    def check(self, plan: StepPlan, found: Findings) -> None:
        before, self._sound = self._sound, {}
        for spec in plan.sampled:
            params = spec.params
            if id(params) not in before:
                problem = _params_problem(params, self._vocab_size)
                if problem is not None:
                    found.add(spec.sequence_id, problem)
                    continue
            self._sound[id(params)] = params
        if not are_distinct([spec.sequence_id for spec in plan.sampled]):
            counts = Counter(spec.sequence_id for spec in plan.sampled)
            for key in (key for key, count in counts.items() if count > 1):
                found.add(key, "the sequence is sampled twice in one step")
        if any(map(reads_history, self._sound.values())):
            self._check_histories(plan, found)

    def _check_histories(self, plan: StepPlan, found: Findings) -> None:
        for i, first, count in sample_ranges(plan):
            readers = [s for s in plan.sampled[first : first + count] if reads_history(s.params)]
            if readers and not all_below(
                plan.token_buffers[i][: plan.token_lengths[i]], self._vocab_size
            ):
                for spec in readers:
                    found.add(spec.sequence_id, f"a token id is not below {self._vocab_size}")


def _params_problem(params: SamplingParams, vocab_size: int) -> str | None:
    floats = (
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        *(bias for _, bias in params.logit_bias),
    )
    if not all(map(math.isfinite, floats)):
        return "a sampling parameter is not finite"
    if params.temperature < 0 or params.repetition_penalty <= 0 or params.top_k < 0:
        return "temperature, top_k or repetition_penalty is out of range"
    if not (0 < params.top_p <= 1 and 0 <= params.min_p <= 1):
        return "top_p or min_p is out of range"
    if any(k is not None and k < 0 for k in (params.num_logprobs, params.num_prompt_logprobs)):
        return "a number of logprobs is negative"
    ids = [*params.stop_token_ids, *(token for token, _ in params.logit_bias)]
    if not all(0 <= token < vocab_size for token in ids):
        return f"a stop or bias token id is not below {vocab_size}"
    return None


def sample_ranges(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(chunk, first entry of `sampled`, how many) for each chunk that samples."""
    ranges, first = [], 0
    for i, count in enumerate(plan.num_samples):
        if count:
            ranges.append((i, first, count))
        first += count
    return ranges
