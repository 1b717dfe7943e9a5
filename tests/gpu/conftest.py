"""The kernels' tests once more, on a real GPU and in one more dtype."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.support.uninitialized import filled_with_nan

# cuBLAS reads it when it starts; torch asks for it where new memory is to be filled.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_gpu = pytest.mark.skip(reason="torch sees no GPU")
    for item in items:
        if "gpu" not in item.path.parts:
            continue
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(no_gpu)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda")


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return getattr(torch, request.param)


@pytest.fixture(scope="session", autouse=True)
def torch_on_the_host() -> Iterator[None]:
    """The CPU's answers are references here: compiling native kernels for them would cost seconds.

    Not set for good: this file is imported, and its tests left out, beside those of the CPU.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_NATIVE", "0")
        yield


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    with filled_with_nan():
        yield


@pytest.fixture(scope="session")
def half() -> torch.dtype:
    return torch.bfloat16


@pytest.fixture(scope="module", params=["135M", "1B"])
def shape_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_device(device: torch.device) -> Callable[[torch.dtype], object]:
    from executor_service.kernels.device_stream import CudaStream
    from executor_service.memory.gpu_memory import CudaMeter
    from executor_service.runner.cuda_device import CudaDevice
    from executor_service.runner.cuda_graphs import CudaCapture

    def opened(dtype: torch.dtype) -> CudaDevice:
        return CudaDevice(
            device,
            dtype,
            stream=CudaStream(device),
            new_capture=CudaCapture,
            meter=CudaMeter(device),
        )

    return opened


@pytest.fixture(scope="module")
def stream(device: torch.device) -> object:
    from executor_service.kernels.device_stream import CudaStream

    return CudaStream(device)


@pytest.fixture(scope="module")
def capture() -> object:
    # Imported late: without a GPU these tests are collected, and skipped, without triton too.
    from executor_service.runner.cuda_graphs import CudaCapture

    return CudaCapture()
