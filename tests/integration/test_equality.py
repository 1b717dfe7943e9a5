"""Greedy outputs equal HF transformers', whatever runs beside them and however steps are cut.

The default run holds a dozen prompts against the committed reference on a pairwise cover of the
settings. The slow one holds all prompts, at full length, against a reference computed in the run on
that cover, and the dozen on every setting there is: all prompts on all of them would take hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice

import pytest

from scheduler_service.core.events import SequenceKey
from scheduler_service.core.request import FinishReason, Request
from tests.integration.reference.prompts import SMALL_COVER
from tests.integration.reference.recorded import (
    NUM_NEW_TOKENS,
    Answer,
    Difference,
    Recording,
    first_difference,
    recording,
)
from tests.integration.settings import ALL_SETTINGS, PAIRWISE_SETTINGS, Setting
from tests.integration.workload import greedy_request, run_under
from tests.support.in_process_engine import Collected

_NUM_TOKENS_FAST = 24
_AGAIN = ("one-past-64", "chat-steward-hours")
"""Prompts sent twice, the second time behind all others: with the cache on they hit it."""
_NEAR_TIE_SHARE = 1e-3


def _differences(
    answers: Sequence[Answer],
    requests: Sequence[Request],
    choices: Mapping[SequenceKey, Collected],
) -> list[Difference]:
    found = []
    for answer, request in zip(answers, requests, strict=True):
        choice = choices[SequenceKey(request.request_id, 0)]
        difference = first_difference(answer, choice.token_ids)
        if difference is not None:
            found.append(difference)
            continue
        assert choice.finished is not None
        ended = choice.token_ids[-1] in request.eos_token_ids
        assert choice.finished.reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert choice.finished.num_output_tokens == len(choice.token_ids)
    return found


def _work(
    reference: Recording, names: Sequence[str], max_tokens: int
) -> tuple[list[Answer], list[Request]]:
    repeated = [name for name in _AGAIN if name in names]
    answers = [reference.answers[name].first(max_tokens) for name in (*names, *repeated)]
    requests = [
        greedy_request(
            answer,
            reference.eos_token_ids,
            max_tokens=max_tokens,
            request_id=f"{i}-{answer.name}",
        )
        for i, answer in enumerate(answers)
    ]
    return answers, requests


def _third_of_the_prompts(setting: Setting) -> tuple[str, ...]:
    """Alone is slow: each setting with batch 1 takes another third of the dozen."""
    alone = [s for s in PAIRWISE_SETTINGS if s.batch == 1]
    return tuple(islice(SMALL_COVER, alone.index(setting), None, len(alone)))


@pytest.mark.parametrize("setting", PAIRWISE_SETTINGS, ids=str)
def test_greedy_tokens_equal_the_committed_reference(setting: Setting) -> None:
    names = SMALL_COVER if setting.batch > 1 else _third_of_the_prompts(setting)
    answers, requests = _work(recording(), names, _NUM_TOKENS_FAST)
    choices, engine = run_under(setting, requests)
    assert _differences(answers, requests, choices) == []
    counters = engine.scheduler.counters
    assert (counters.num_preemptions > 0) is setting.preempts
    if setting.prefix_cache == "off":
        assert all(choice.num_cached_tokens == 0 for choice in choices.values())


def test_the_dozen_has_no_near_tie_to_forgive() -> None:
    """The default run forgives no difference at all, so its prompts must leave no doubt."""
    reference = recording()
    least = {name: min(reference.answers[name].gaps[:_NUM_TOKENS_FAST]) for name in SMALL_COVER}
    assert min(least.values()) > 1e-3, least


def test_the_pairwise_cover_is_one() -> None:
    def pairs(settings: Sequence[Setting]) -> set[tuple[tuple[str, object], ...]]:
        fields = Setting.__dataclass_fields__
        return {
            ((a, getattr(s, a)), (b, getattr(s, b)))
            for s in settings
            for a in fields
            for b in fields
            if a < b
        }

    assert pairs(PAIRWISE_SETTINGS) == pairs(ALL_SETTINGS)


class _Tally:
    """Differences over all settings of a run: near ties are listed and counted, nothing more."""

    def __init__(self) -> None:
        self.num_sequences = 0
        self.near_ties: list[tuple[Setting, Difference]] = []

    def add(self, setting: Setting, num_sequences: int, differences: list[Difference]) -> None:
        self.num_sequences += num_sequences
        real = [difference for difference in differences if not difference.is_near_tie]
        assert real == [], f"{len(real)} of {num_sequences} sequences differ"
        self.near_ties += [(setting, difference) for difference in differences]


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[_Tally]:
    kept = _Tally()
    yield kept
    writer = request.config.get_terminal_writer()
    for setting, difference in kept.near_ties:
        writer.line(f"\nnear tie under {setting}: {difference}")
    assert len(kept.near_ties) <= _NEAR_TIE_SHARE * kept.num_sequences


@cache
def _computed_reference() -> Recording:
    from tests.integration.reference import generate
    from tests.integration.reference.hf_model import ReferenceModel, installed_gguf

    model = ReferenceModel(installed_gguf())
    answers = generate.answers(model)
    return Recording(
        eos_token_ids=model.eos_token_ids, answers={answer.name: answer for answer in answers}
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("default")
def test_the_committed_reference_is_what_transformers_says_today() -> None:
    committed, computed = recording(), _computed_reference()
    assert committed.eos_token_ids == computed.eos_token_ids
    assert committed.answers.keys() == computed.answers.keys()
    for name, answer in committed.answers.items():
        fresh = computed.answers[name]
        assert answer.prompt_token_ids == fresh.prompt_token_ids
        difference = first_difference(answer, fresh.token_ids)
        assert difference is None or difference.is_near_tie, difference


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("setting", PAIRWISE_SETTINGS, ids=str)
def test_all_greedy_tokens_equal_transformers(setting: Setting, tally: _Tally) -> None:
    reference = _computed_reference()
    answers, requests = _work(reference, tuple(reference.answers), NUM_NEW_TOKENS)
    choices, _ = run_under(setting, requests)
    tally.add(setting, len(requests), _differences(answers, requests, choices))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("setting", ALL_SETTINGS, ids=str)
def test_greedy_tokens_equal_the_reference_on_every_setting(
    setting: Setting, tally: _Tally
) -> None:
    answers, requests = _work(recording(), SMALL_COVER, _NUM_TOKENS_FAST)
    choices, _ = run_under(setting, requests)
    tally.add(setting, len(requests), _differences(answers, requests, choices))
