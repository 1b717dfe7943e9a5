"""What a GPU's weights take is known from their header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from common.errors import ModelError
from executor_service.config import ExecutorConfig
from executor_service.models.checkpoint import open_checkpoint
from executor_service.models.llama import LlamaModel
from executor_service.models.weight_sizes import weight_bytes
from executor_service.runner.cuda_device import CudaDevice
from executor_service.runner.load import load_on
from tests.support.late_stream import LateStream
from tests.support.recorded_capture import RecordingCapture
from tests.support.tiny_llama import save_tiny, tiny_model
from tests.support.told_meter import ToldMeter


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_headers_tell_what_weights_will_take_to_the_byte(
    head: str, dtype: torch.dtype, open_device: Callable[[torch.dtype], CudaDevice], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(
        save_tiny(tiny_model("llama", tie_word_embeddings=head == "tied"), tmp_path)
    )
    config, weights = checkpoint.config, checkpoint.weights
    backend = open_device(dtype).backend(config, 64)
    model = LlamaModel(backend, config, weights, 64, lambda done, total, what: None)
    assert weight_bytes(backend, config, weights, backend.weight_rules) == model.num_bytes


@pytest.mark.parametrize(
    ("dtype", "remedy"), [(torch.float32, "--dtype bfloat16"), (torch.bfloat16, "no flag")]
)
def test_too_large_ones_are_refused_with_what_would_help(
    dtype: torch.dtype, remedy: str, tmp_path: Path
) -> None:
    device = CudaDevice(
        torch.device("cpu"),
        dtype,
        stream=LateStream(),
        new_capture=RecordingCapture,
        meter=ToldMeter(free=2048),
    )
    config = ExecutorConfig(model=str(save_tiny(tiny_model("llama"), tmp_path)), threads=1)
    with pytest.raises(ModelError, match=rf"do not fit.*2\.00 KiB are free; {remedy}"):
        load_on(device, config, lambda done, total, what: pytest.fail("weights are read"))
