"""Models of random weights through the whole runner, beside transformers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from common.plan import SamplingParams, StepPlan
from executor_service.config import ExecutorConfig
from executor_service.runner.cuda_device import CudaDevice
from executor_service.runner.device_runner import DeviceRunner
from executor_service.runner.load import load_checkpoint
from tests.support.plans import GREEDY, add_chunk, make_spec
from tests.support.random_llama import SHAPES, LlamaShape, random_checkpoint, transformers_model
from tests.support.run_ahead import RunAhead
from tests.support.tiny_runner import NUM_BLOCKS

SEED = 3
NEAR_TIE = 1e-3
"""Of two logits: sums in another order may turn them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is compared."""

    lengths: tuple[int, ...]
    num_outputs: int


EXTENTS = {"tiny": Extent(lengths=(20, 7), num_outputs=3)}
FULL = Extent(lengths=(300, 33, 7, 129), num_outputs=24)


@pytest.fixture(scope="module")
def shape(shape_name: str) -> LlamaShape:
    return SHAPES[shape_name]


@pytest.fixture(scope="module")
def extent(shape_name: str) -> Extent:
    return EXTENTS.get(shape_name, FULL)


@pytest.fixture(scope="module")
def prompts(shape: LlamaShape, extent: Extent) -> list[list[int]]:
    choose = random.Random(1)
    return [choose.choices(range(shape.vocab_size), k=length) for length in extent.lengths]


@pytest.fixture(scope="module")
def reference(shape: LlamaShape, device: torch.device) -> Iterator[Callable[[list[int]], Tensor]]:
    """Logits [num_tokens, vocab_size] of a whole sequence, by transformers in float32."""
    model: Any = transformers_model(shape, SEED, device, torch.float32, "sdpa")

    @torch.inference_mode()
    def logits(tokens: list[int]) -> Tensor:
        found: Tensor = model(torch.tensor([tokens], device=device)).logits[0].float()
        return found

    yield logits
    if device.type == "cuda":
        del model
        torch.cuda.empty_cache()


@pytest.fixture
def load(
    shape: LlamaShape, device: torch.device, open_device: Callable[[torch.dtype], CudaDevice]
) -> Callable[[torch.dtype], DeviceRunner]:
    def loaded(dtype: torch.dtype) -> DeviceRunner:
        fields: dict[str, Any] = {
            "model": "random",
            "max_num_seqs": 4 if device.type == "cuda" else 2,
            "max_num_batched_tokens": 512 if device.type == "cuda" else 32,
            # On a GPU the pool is sized by a trial run, beside all that stands there already.
            "num_blocks": None if device.type == "cuda" else NUM_BLOCKS,
            "gpu_memory_utilization": 0.6,
        }
        runner = load_checkpoint(
            open_device(dtype),
            ExecutorConfig(**fields),
            random_checkpoint(shape, SEED, device),
            lambda done, total, what: None,
        )
        assert isinstance(runner, DeviceRunner)
        return runner

    return loaded


def prompt_logprobs(runner: DeviceRunner, prompts: list[list[int]]) -> list[list[float]]:
    """Of each prompt's tokens from the second on; each prompt is a step of its own."""
    found = []
    for row, tokens in enumerate(prompts):
        spec = make_spec(row + 1, len(tokens), params=SamplingParams(num_prompt_logprobs=0))
        plan = StepPlan(step_id=row)
        blocks = range(-(-len(tokens) // 16))
        add_chunk(plan, spec, tokens, blocks, length=len(tokens), samples=[spec])
        result = runner.execute(plan)
        assert not result.errors
        found.append([entry.logprobs[0] for entry in result.prompt_logprobs[0].positions])
    return found


def differences(
    runner: DeviceRunner, reference: Callable[[list[int]], Tensor], prompts: list[list[int]]
) -> Tensor:
    """Of every prompt token's logprob."""
    parts = []
    for tokens, found in zip(prompts, prompt_logprobs(runner, prompts), strict=True):
        wanted = reference(tokens)[:-1].log_softmax(dim=1).cpu()
        expected = wanted[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
        parts.append((torch.tensor(found) - expected).abs())
    return torch.cat(parts)


def test_logprobs_equal_transformers_in_float32_and_answers_when_run_ahead_of(
    load: Callable[[torch.dtype], DeviceRunner],
    reference: Callable[[list[int]], Tensor],
    prompts: list[list[int]],
    extent: Extent,
) -> None:
    runner = load(torch.float32)
    assert differences(runner, reference, prompts).max() < 5e-3
    ahead = RunAhead(runner)
    sequences = [ahead.start(tokens, GREEDY, extent.num_outputs) for tokens in prompts]
    ahead.run(sequences, extent.num_outputs, chunk=50)
    for tokens, sequence in zip(prompts, sequences, strict=True):
        assert len(sequence.outputs) == extent.num_outputs, sequence.errors
        logits = reference([*tokens, *sequence.outputs])[len(tokens) - 1 : -1]
        best = logits.max(dim=1).values
        chosen = logits[torch.arange(len(logits)), torch.tensor(sequence.outputs)]
        # Every token is the best after those before it, or as good as.
        assert (best - chosen).max() < NEAR_TIE


def test_logprobs_in_half_precision_are_near(
    load: Callable[[torch.dtype], DeviceRunner],
    reference: Callable[[list[int]], Tensor],
    prompts: list[list[int]],
    half: torch.dtype,
) -> None:
    assert differences(load(half), reference, prompts).mean() < 0.05
