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
from executor_service.runner.cuda_graphs import Capture, bucket_sizes
from executor_service.runner.load import load_on
from executor_service.runner.trial_run import StepLimits, Trial, largest_prompts, longest_decodes
from tests.support.tiny_llama import save_tiny, tiny_model
from tests.support.told_meter import ToldMeter

LIMITS = [(512, 3, 64), (5, 8, 64), (8, 8, 64), (100, 1, 64), (17, 4, 16)]


@pytest.mark.parametrize(("tokens", "seqs", "longest"), LIMITS)
def test_no_step_is_larger(tokens: int, seqs: int, longest: int) -> None:
    limits = StepLimits(
        max_num_batched_tokens=tokens, max_num_seqs=seqs, max_model_len=longest, block_size=16
    )
    prompts, decodes = largest_prompts(limits), longest_decodes(limits)
    rows = min(tokens, seqs)
    assert len(prompts.sampled) == len(decodes.sampled) == rows
    assert prompts.num_tokens == min(tokens, rows * longest)
    assert set(decodes.starts) == {longest - 1}
    assert max(prompts.lengths) <= longest
    written = [block for table in prompts.table_buffers for block in table]
    assert len(set(written)) == len(written)
    assert len({table[-1] for table in decodes.table_buffers}) == rows


def test_a_step_that_does_not_fit_names_the_flags(
    open_device: Callable[[torch.dtype], CudaDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    monkeypatch.setattr(Trial, "measure", measure)
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens.*9 GiB"):
        open_device(torch.float32).pool_bytes(ExecutorConfig(), nothing, 128, nothing)


def test_a_runner_s_pool_takes_what_the_trial_leaves(
    device: torch.device, stream: DeviceStream, capture: Capture, tmp_path: Path
) -> None:
    """Two graphs of the trial took 300 and 20 MiB, the larger of two steps 70."""
    directory = save_tiny(tiny_model("llama"), tmp_path)
    meter = ToldMeter(
        free=GIB,
        total=2 * GIB,
        frees=[free * MIB for free in (900, 600, 600, 580)],
        peaks=[70 * MIB, 30 * MIB],
    )
    opened = CudaDevice(
        device, torch.float32, stream=stream, new_capture=lambda: capture, meter=meter
    )
    fields: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 32}
    config = ExecutorConfig(model=str(directory), threads=1, gpu_memory_utilization=1.0, **fields)
    graphs = (300 + (len(bucket_sizes(2)) - 1) * 20) * MIB
    runner = load_on(opened, config, lambda done, total, what: None)
    assert meter.num_runs == 2
    expected = GIB - 70 * MIB - graphs - 256 * MIB
    per_block = runner.spec.kv_bytes_per_token * runner.spec.block_size
    assert runner.spec.num_blocks == num_blocks_that_fit(expected, per_block)
