"""Requests made from recorded answers, run on the in-process engine under one setting."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from common.plan import TOKEN_TYPECODE, SamplingParams
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.request import Request
from tests.integration.reference.recorded import Answer
from tests.integration.settings import Setting
from tests.support.in_process_engine import Arrival, Collected, InProcessEngine
from tests.support.real_runner import smollm2_runner

_PREEMPT_EVERY = 8
"""Turns; beside the preemptions that a tight pool brings of itself."""
_TURNS_APART = 3
"""Between arrivals: late ones join in the middle of others' prompts and answers."""


def greedy_request(
    answer: Answer,
    eos_token_ids: Sequence[int],
    *,
    max_tokens: int,
    request_id: str | None = None,
) -> Request:
    """Runs to max_tokens; a chat also ends at its end of turn."""
    eos = tuple(eos_token_ids) if answer.kind == "chat" else ()
    return Request(
        request_id=request_id or answer.name,
        prompt_token_ids=array(TOKEN_TYPECODE, answer.prompt_token_ids),
        params=SamplingParams(temperature=0.0, stop_token_ids=eos),
        max_tokens=max_tokens,
        eos_token_ids=frozenset(eos),
    )


def engine_for(setting: Setting, requests: Sequence[Request]) -> InProcessEngine:
    runner = smollm2_runner()
    longest = max(len(r.prompt_token_ids) + (r.max_tokens or 0) for r in requests)
    limits = setting.limits(
        num_blocks=runner.spec.num_blocks,
        longest=longest,
        vocab_size=runner.spec.vocab_size,
        max_model_len=runner.spec.max_model_len,
    )
    return InProcessEngine(limits, runner, max_rows=runner.spec.max_rows)


def run_under(
    setting: Setting, requests: Sequence[Request]
) -> tuple[Mapping[SequenceKey, Collected], InProcessEngine]:
    """All requests to their ends. The engine comes back idle, for its counters."""
    engine = engine_for(setting, requests)
    apart = _TURNS_APART if setting.batch > 1 else 0
    arrivals = [Arrival(i * apart, request) for i, request in enumerate(requests)]
    engine.run(arrivals, preempt_every=_PREEMPT_EVERY if setting.preempts else None)
    return engine.choices, engine
