"""What a CPU keeps for steps, against what steps take."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile

from common.plan import SamplingParams
from executor_service.config import ExecutorConfig
from executor_service.kernels import cpu_step
from executor_service.models.checkpoint import open_checkpoint
from executor_service.models.llama import LlamaModel
from executor_service.runner.cpu_device import CpuDevice
from executor_service.runner.native_forward import NativeForward
from executor_service.runner.step_limits import StepLimits
from tests.support.native_library import native_library
from tests.support.tiny_llama import VOCAB_SIZE, save_tiny, tiny_model
from tests.support.tiny_runner import generate, tiny_runner

MAX_TOKENS, MAX_SEQS, MAX_LEN = 256, 24, 400
LIMITS = {"max_num_batched_tokens": MAX_TOKENS, "max_num_seqs": MAX_SEQS}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_model("llama"), tmp_path_factory.mktemp("tiny-model"))


def kept(directory: Path, **changes: Any) -> int:
    """What a device says before there is a pool."""
    checkpoint = open_checkpoint(directory)
    device = CpuDevice(ExecutorConfig(model=str(directory), threads=1, **changes))
    backend = device.backend(checkpoint.config, MAX_LEN)
    model = LlamaModel(
        backend, checkpoint.config, checkpoint.weights, MAX_LEN, lambda done, total, what: None
    )
    limits = StepLimits(max_model_len=MAX_LEN, block_size=16, **LIMITS)
    return device.step_bytes(model, limits, backend)


@pytest.mark.parametrize("changes", [{}, {"kv_cache_dtype": "int8"}, {"quantization": "int8"}])
def test_native_steps_take_what_is_kept(
    directory: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    native_library()
    built: list[NativeForward] = []
    forward = NativeForward.__init__

    def build(self: NativeForward, *arguments: Any) -> None:
        forward(self, *arguments)
        built.append(self)

    monkeypatch.setattr(NativeForward, "__init__", build)
    tiny_runner(directory, max_model_len=MAX_LEN, **LIMITS, **changes)
    (native,) = built
    step = native.step
    pieces = (step.workspace, step.hidden, step.logits, step.maxima)
    taken = sum(piece.nbytes for piece in pieces)
    draws = kept(directory, **changes) - taken
    assert VOCAB_SIZE * 4 <= draws <= VOCAB_SIZE * 64


def test_torch_steps_take_no_more_than_is_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_NATIVE", "0")
    # Tiles as small as the model: their usual bounds are far above all that it takes.
    monkeypatch.setattr(cpu_step, "_MAX_GROUP_SLOTS", 1 << 10)
    monkeypatch.setattr(cpu_step, "_MAX_SCORES", 1 << 15)
    limit = kept(directory)
    rule = SamplingParams(top_k=5)
    runner = tiny_runner(directory, max_model_len=MAX_LEN, num_blocks=256, **LIMITS)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        generate(runner, [([3] * (MAX_LEN - 20), rule)], 3, chunk=MAX_TOKENS)
        generate(runner, [([7] * 20, rule)] * MAX_SEQS, 3, chunk=MAX_TOKENS // MAX_SEQS)
    assert limit / 4 < peak_of(profiled) < limit


def peak_of(profiled: profile) -> int:
    """Of memory that torch took and had not given back yet."""
    assert profiled.profiler is not None
    events = profiled.profiler.kineto_results.events()
    taken = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(accumulate(num_bytes for _, num_bytes in taken))
