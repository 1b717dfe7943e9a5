"""Captured decodes against the same kernels launched one by one, in half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the package triton is not installed")

import torch  # noqa: E402

from executor_service.kernels.kv_kind import KVKind  # noqa: E402
from executor_service.models.checkpoint import open_checkpoint  # noqa: E402
from executor_service.models.llama import LlamaModel  # noqa: E402
from executor_service.runner.batch import InputBatch  # noqa: E402
from executor_service.runner.cuda_graphs import CudaCapture, DecodeGraphs  # noqa: E402
from tests.support.cuda_backends import make_backend  # noqa: E402
from tests.support.paged import make_layout  # noqa: E402
from tests.support.tiny_llama import VOCAB_SIZE, save_tiny, tiny_model  # noqa: E402

NUM_SEQUENCES = 5
MAX_LEN = 64
BLOCK_SIZE = 16
NUM_BLOCKS = NUM_SEQUENCES * MAX_LEN // BLOCK_SIZE


def batch_of(starts: list[int], length: int, tables: torch.Tensor) -> InputBatch:
    chunks = [(start, length) for start in starts]
    positions = torch.cat([torch.arange(start, start + length) for start in starts])
    generator = torch.Generator().manual_seed(sum(starts))
    return InputBatch(
        chunks=list(range(len(starts))),
        token_ids=torch.randint(VOCAB_SIZE, positions.shape, generator=generator),
        positions=positions,
        layout=make_layout(chunks, tables[: len(starts)], BLOCK_SIZE),
        first_rows=list(range(0, len(starts) * length + 1, length)),
    )


@pytest.mark.parametrize(
    ("half", "kind"),
    [
        ("float16", None),
        ("bfloat16", None),
        ("bfloat16", KVKind.FP8_E4M3),
        ("bfloat16", KVKind.INT8),
        ("float16", KVKind.INT4),
    ],
)
def test_replayed_decodes_have_the_bits_of_launched_ones(
    half: str, kind: KVKind | None, device: torch.device, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(save_tiny(tiny_model("llama"), tmp_path))
    config = checkpoint.config
    backend = make_backend(
        device,
        getattr(torch, half),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_context=MAX_LEN,
        kv_kind=kind,
    )
    shape = config.kv_shape(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1))
    tables = order.view(NUM_SEQUENCES, -1).int()
    with torch.inference_mode():
        model: Any = LlamaModel(
            backend, config, checkpoint.weights, MAX_LEN, lambda done, total, what: None
        )
        kv = backend.allocate_kv(shape)
        backend.fill_blocks(kv, torch.arange(NUM_BLOCKS), float("nan"))
        prompts = batch_of([0] * NUM_SEQUENCES, 20, tables)
        model.forward(prompts.token_ids, prompts.positions, prompts.layout, kv)
        graphs = DecodeGraphs(model, backend, kv, [2, NUM_SEQUENCES], CudaCapture())
        for starts in ([20] * NUM_SEQUENCES, [21, 21], [22], [21, 22, 21]):
            batch = batch_of(starts, 1, tables)
            launched = model.forward(batch.token_ids, batch.positions, batch.layout, kv)
            replayed = graphs.forward(batch)
            assert replayed.isfinite().all()
            # Rows that fill a batch up may give cuBLAS another kernel, so not bit by bit unless
            # the batch is full.
            if len(starts) in (2, NUM_SEQUENCES):
                assert torch.equal(replayed, launched), starts
            else:
                assert torch.allclose(replayed.float(), launched.float(), rtol=0.02, atol=0.02)
