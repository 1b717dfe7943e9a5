from __future__ import annotations

import pytest
import torch

from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import (
    AMPERE,
    HOPPER,
    AttentionShape,
    attention_config,
    power_of_two,
)

SHAPES = [
    (heads, kv_heads, head_dim, context)
    for heads, kv_heads in ((1, 1), (9, 3), (32, 8), (71, 1), (64, 8))
    for head_dim in (64, 80, 96, 128, 256)
    for context in (1, 255, 256, 8192, 131072, 1_000_000)
]


@pytest.mark.parametrize("arch", [AMPERE, 86, HOPPER, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [KVKind.FLOAT32, KVKind.INT8, KVKind.INT4])
def test_tiles_fit_every_shape(arch: int, dtype: torch.dtype, kind: KVKind) -> None:
    for heads, kv_heads, head_dim, context in SHAPES:
        shape = AttentionShape(
            num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, max_context=context
        )
        config = attention_config(shape, dtype, arch, kind)
        for tile in (config.prompt, config.decode):
            assert tile.rows >= max(16, shape.group_size)
            for size in (tile.rows, tile.slots, config.num_warps):
                assert size & (size - 1) == 0, "Triton's ranges are powers of two"
        assert config.tile_tokens >= 1
        assert config.head_dim_pad >= head_dim
        assert config.split_slots % config.decode.slots == 0
        assert config.split_slots * config.max_splits >= context
        assert config.max_splits <= 32, "the partial results would take too much memory"


@pytest.mark.parametrize("window", [1, 2, 255, 256, 257, 4096, 9000])
@pytest.mark.parametrize("context", [300, 4097, 131072])
def test_no_token_sees_more_splits_than_there_is_room_for(window: int, context: int) -> None:
    shape = AttentionShape(
        num_heads=4, num_kv_heads=2, head_dim=64, max_context=context, window=window
    )
    config = attention_config(shape, torch.float16, AMPERE, KVKind.FLOAT16)
    assert config.max_splits <= 32
    assert config.split_slots % config.decode.slots == 0
    for last in range(0, context, 97):
        first = max(last - window + 1, 0)
        assert last // config.split_slots - first // config.split_slots < config.max_splits


def test_a_power_of_two_is_its_own() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
