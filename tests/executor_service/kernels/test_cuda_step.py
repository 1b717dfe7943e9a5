"""The host's part of a step on the GPU; no kernel runs here."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import torch

from executor_service.kernels.backend import StepLayout
from executor_service.kernels.cuda_step import CudaStep, begin_step
from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import AMPERE, AttentionShape, attention_config
from executor_service.kernels.transfers import upload_now

SHAPE = AttentionShape(num_heads=9, num_kv_heads=3, head_dim=64, max_context=2048)
CONFIG = attention_config(SHAPE, torch.float16, AMPERE, KVKind.FLOAT16)


def step_of(chunks: list[tuple[int, int]]) -> CudaStep:
    starts, lengths = torch.tensor(chunks, dtype=torch.int32).unbind(1)
    layout = StepLayout(
        starts=starts.contiguous(),
        lengths=lengths.contiguous(),
        block_tables=torch.arange(7 * len(chunks), dtype=torch.int32).view(-1, 7),
        slot_mapping=torch.arange(int(lengths.sum())),
    )
    return begin_step(layout, CONFIG, partial(upload_now, device=torch.device("cpu")))


def test_each_token_is_attended_once() -> None:
    choose = random.Random(1)
    for _ in range(50):
        chunks = [
            (choose.randrange(100), choose.choice([1, 1, 2, 3, 41, 42, 43, 130]))
            for _ in range(choose.randrange(1, 9))
        ]
        step = step_of(chunks)
        firsts = np.cumsum([0] + [length for _, length in chunks])
        covered = []
        if step.decodes is not None:
            covered += [int(firsts[chunk]) for chunk in step.decodes.chunks.tolist()]
        if step.tiles is not None:
            for chunk, first in zip(
                step.tiles.chunks.tolist(), step.tiles.firsts.tolist(), strict=True
            ):
                last = min(first + CONFIG.tile_tokens, chunks[chunk][1])
                covered += range(firsts[chunk] + first, firsts[chunk] + last)
        assert sorted(covered) == list(range(firsts[-1])), chunks
        assert step.chunks.first_rows.tolist() == firsts[:-1].tolist()


def test_tiles_with_most_context_go_first() -> None:
    length = 2 * CONFIG.tile_tokens + 1
    tiles = step_of([(0, length), (1000, 2), (5, 1)]).tiles
    assert tiles is not None
    assert tiles.chunks.tolist() == [1, 0, 0, 0]
    assert tiles.firsts.tolist() == [0, 2 * CONFIG.tile_tokens, CONFIG.tile_tokens, 0]


def test_steps_of_one_kind_have_no_other() -> None:
    assert step_of([(3, 1), (9, 1)]).tiles is None
    assert step_of([(0, 2)]).decodes is None


def test_as_many_programs_as_the_longest_context_has_splits() -> None:
    for context, programs in ((255, 1), (256, 2), (511, 2), (512, 3)):
        decodes = step_of([(context, 1), (0, 1)]).decodes
        assert decodes is not None
        assert decodes.num_programs == programs
