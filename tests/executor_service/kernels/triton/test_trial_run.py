"""The largest steps, run before there is a pool: what they are, and what their figures do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import ConfigError
from common.kv_size import GIB, MIB, num_blocks_that_fit
from executor_service.config import ExecutorConfig
from executor_service.kernels.device_stream import DeviceStream
from executor_service.runner.cuda_device import CudaDevice
from executor_service.runner.cuda_graphs import Capture
from executor_service.runner.load import load_on
from executor_service.runner.step_limits import StepLimits
from executor_service.runner.trial_run import Trial, fullest_step, longest_decodes
from tests.support.noted_capture import NotedCapture
from tests.support.tiny_llama import save_tiny, tiny_model
from tests.support.told_meter import ToldMeter

CASES = [(512, 3, 64), (5, 8, 64), (8, 8, 64), (100, 1, 64), (17, 4, 16), (1, 1, 64)]


def limits_of(tokens: int, seqs: int, longest: int) -> StepLimits:
    return StepLimits(
        max_num_batched_tokens=tokens, max_num_seqs=seqs, max_model_len=longest, block_size=16
    )


@pytest.mark.parametrize(("tokens", "seqs", "longest"), CASES)
def test_no_step_is_larger(tokens: int, seqs: int, longest: int) -> None:
    """Chunks are of sequences with a place; each may sample, and as many forks as there are
    places."""
    limits = limits_of(tokens, seqs, longest)
    chunks = min(tokens, seqs)
    fullest, decodes = fullest_step(limits), longest_decodes(limits)
    assert fullest.num_chunks == decodes.num_chunks == chunks
    assert len(fullest.sampled) == sum(fullest.num_samples) == chunks + seqs
    assert fullest.num_tokens == min(tokens, chunks * longest)
    assert set(decodes.starts) == {longest - 1}
    singles = [start for start, n in zip(fullest.starts, fullest.lengths, strict=True) if n == 1]
    assert set(singles) <= {longest - 1}, "those beside the prompts are the longest decodes"
    assert len(singles) >= chunks - -(-tokens // longest)


@pytest.mark.parametrize(("tokens", "seqs", "longest"), CASES)
def test_no_two_chunks_write_into_one_block(tokens: int, seqs: int, longest: int) -> None:
    limits = limits_of(tokens, seqs, longest)
    for plan in (fullest_step(limits), longest_decodes(limits)):
        written = [
            block
            for start, table in zip(plan.starts, plan.table_buffers, strict=True)
            for block in table[start // limits.block_size :]
        ]
        assert len(set(written)) == len(written)
        read = [block for table in plan.table_buffers for block in table]
        assert sum(block in set(written) for block in read) == len(written)


def test_a_step_that_does_not_fit_names_the_flags(
    open_device: Callable[[torch.dtype], CudaDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    monkeypatch.setattr(Trial, "measure", measure)
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens.*9 GiB"):
        open_device(torch.float32).pool_bytes(
            ExecutorConfig(), nothing, limits_of(8, 2, 128), nothing
        )


def test_a_runner_s_pool_takes_what_the_trial_leaves(
    device: torch.device, stream: DeviceStream, capture: Capture, tmp_path: Path
) -> None:
    """Two graphs of the trial took 300 and 20 MiB, the larger of two steps 70."""
    directory = save_tiny(tiny_model("llama"), tmp_path)
    meter = ToldMeter(
        free=GIB,
        total=2 * GIB,
        frees=[free * MIB for free in (1000, 900, 600, 600, 580)],
        peaks=[70 * MIB, 30 * MIB],
    )
    captures: list[NotedCapture] = []

    def new_capture() -> NotedCapture:
        captures.append(NotedCapture(capture))
        return captures[-1]

    opened = CudaDevice(device, torch.float32, stream=stream, new_capture=new_capture, meter=meter)
    fields: dict[str, Any] = {"max_num_seqs": 3, "max_num_batched_tokens": 8, "max_model_len": 32}
    config = ExecutorConfig(model=str(directory), threads=1, gpu_memory_utilization=1.0, **fields)
    runner = load_on(opened, config, lambda done, total, what: None)
    assert meter.num_runs == 2
    trial, serving = (noted.sizes for noted in captures)
    assert serving == [3, 2, 1], "as many decodes as a step may have are the most of a graph"
    assert set(trial) == {max(serving), min(serving)}
    graphs = (300 + (len(serving) - 1) * 20) * MIB
    expected = GIB - 70 * MIB - graphs - 256 * MIB
    per_block = runner.spec.kv_bytes_per_token * runner.spec.block_size
    assert runner.spec.num_blocks == num_blocks_that_fit(expected, per_block)
