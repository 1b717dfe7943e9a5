from __future__ import annotations

import pytest

from tests.support.builders import make_limits


@pytest.mark.parametrize(
    "field", ["block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"]
)
def test_a_limit_below_one_is_named(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make_limits(**{field: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [0, 3])
def test_depth_is_one_or_two(depth: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        make_limits(depth=depth)


def test_decodes_alone_never_fill_the_budget() -> None:
    assert make_limits(max_num_seqs=8, max_num_batched_tokens=3).max_num_running == 3
    assert make_limits(max_num_seqs=2, max_num_batched_tokens=3).max_num_running == 2


def test_a_sequence_is_bounded_by_pool_and_context() -> None:
    assert make_limits(num_blocks=4, block_size=16, max_model_len=512).max_sequence_len == 64
    assert make_limits(num_blocks=64, block_size=16, max_model_len=512).max_sequence_len == 512
