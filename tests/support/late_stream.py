"""A device's stream without a device: nothing has happened until somebody waits for it.

Kernels run at once here, on the CPU. But what a copy brings to the host appears there only when a
mark behind it is waited for, and until then the place holds nonsense; and what was sent must still
stand unchanged in host memory by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from executor_service.kernels.device_stream import Mark

_NONSENSE = 0xA5


class LateStream:
    """`DeviceStream` on CPU tensors."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.num_waits = 0
        self.num_host_memories = 0
        self.num_passed = 0
        self._work: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def host_memory(self, num_bytes: int) -> Tensor:
        self.num_host_memories += 1
        return torch.full((num_bytes,), _NONSENSE, dtype=torch.uint8)

    def upload(self, source: Tensor) -> Tensor:
        sent = source.clone()

        def arrive() -> None:
            assert torch.equal(source, sent), "host memory was used again before it was sent"

        self._put(arrive)
        return sent.clone()

    def download(self, source: Tensor, target: Tensor) -> None:
        value = source.clone()
        target.view(torch.uint8).fill_(_NONSENSE)
        self._put(lambda: target.copy_(value))

    def mark(self) -> LateMark:
        with self._lock:
            return LateMark(self, self.num_passed + len(self._work))

    def run_to(self, place: int) -> None:
        # As memory taken while a step is launched may not be written outside of that mode.
        with self._lock, torch.inference_mode():
            self.num_waits += 1
            while self.num_passed < place:
                self._work.pop(0)()
                self.num_passed += 1

    def _put(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._work.append(lambda: (work(), None)[1])


@dataclass(frozen=True, slots=True)
class LateMark:
    stream: LateStream
    place: int
    """Pieces of work before it."""

    def wait(self) -> None:
        self.stream.run_to(self.place)

    def ns_since(self, earlier: Mark) -> int:
        assert isinstance(earlier, LateMark)
        assert self.place <= self.stream.num_passed, "timed before it was waited for"
        return self.place - earlier.place
