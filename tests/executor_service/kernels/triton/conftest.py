from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from common.kv_size import GIB
from tests.support.late_stream import LateStream
from tests.support.recorded_capture import RecordingCapture
from tests.support.told_meter import ToldMeter
from tests.support.uninitialized import filled_with_nan

# Elsewhere there is nothing to collect: kernels cannot be launched on CPU tensors.
collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu")


# bfloat16 is not among them: what it adds to these two is tested by itself. A whole model in half
# precision is among the tests that decide.
@pytest.fixture(params=["float32", pytest.param("float16", marks=pytest.mark.slow)])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return getattr(torch, request.param)


@pytest.fixture(scope="session", autouse=True)
def mended_interpreter() -> Iterator[None]:
    # Triton decides when it is imported whether it interprets.
    from tests.support.exact_interpreter import exact_interpreter

    with exact_interpreter():
        yield


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """A kernel that leaves a hole in its output leaves NaN there."""
    with filled_with_nan():
        yield


@pytest.fixture(scope="session")
def half() -> torch.dtype:
    return torch.float16


@pytest.fixture(scope="module")
def shape_name() -> str:
    return "tiny"


@pytest.fixture
def open_device() -> Callable[[torch.dtype], object]:
    # Imported late: only where the interpreter is on can it be.
    from executor_service.runner.cuda_device import CudaDevice

    def opened(dtype: torch.dtype) -> CudaDevice:
        return CudaDevice(
            torch.device("cpu"),
            dtype,
            stream=LateStream(),
            new_capture=RecordingCapture,
            meter=ToldMeter(free=GIB),
        )

    return opened


@pytest.fixture(scope="module")
def stream() -> LateStream:
    return LateStream()


@pytest.fixture(scope="module")
def capture() -> RecordingCapture:
    return RecordingCapture()
