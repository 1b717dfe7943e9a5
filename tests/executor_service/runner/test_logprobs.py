from __future__ import annotations

import numpy as np
import pytest
import torch

from executor_service.runner.logprobs import best_tokens, token_logprobs

LOGITS = torch.randn(500, generator=torch.Generator().manual_seed(2)) * 4


def test_values_are_log_softmax_of_the_raw_logits() -> None:
    expected = torch.log_softmax(LOGITS.double(), 0)
    entry = token_logprobs(LOGITS.numpy(), 77, 5)
    best = expected.topk(5)
    assert entry.token_ids == (77, *best.indices.tolist())
    assert entry.logprobs == pytest.approx([float(expected[77]), *best.values.tolist()], abs=1e-6)
    assert entry.rank == 1 + int((expected > expected[77]).sum())


def test_the_best_token_has_rank_1_and_is_listed_twice() -> None:
    best = int(LOGITS.argmax())
    entry = token_logprobs(LOGITS.numpy(), best, 2)
    assert entry.rank == 1
    assert entry.token_ids[:2] == (best, best)


def test_none_of_the_best_gives_the_token_alone() -> None:
    assert token_logprobs(LOGITS.numpy(), 3, 0).token_ids == (3,)


def test_more_than_the_vocabulary_gives_all_of_it_once() -> None:
    assert sorted(best_tokens(LOGITS.numpy(), 10_000).tolist()) == list(range(500))


def test_equal_logits_rank_by_id() -> None:
    logits = np.array([0, 2, 1, 2, 2, 1], np.float32)
    assert best_tokens(logits, 5).tolist() == [1, 3, 4, 2, 5]
    assert best_tokens(logits, 2).tolist() == [1, 3]
    assert [token_logprobs(logits, token, 0).rank for token in range(6)] == [6, 1, 4, 2, 3, 5]


def test_huge_and_excluded_logits_stay_finite_where_they_can() -> None:
    logits = np.array([3e4, -3e4, -np.inf, 2.9e4], np.float32)
    entry = token_logprobs(logits, 0, 2)
    assert entry.logprobs[0] == 0
    assert np.isfinite(entry.logprobs).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_logits_give_nan_and_no_exception(value: float) -> None:
    logits = np.ones(8, np.float32)
    logits[3] = value
    assert np.isnan(token_logprobs(logits, 3, 2).logprobs[0])
