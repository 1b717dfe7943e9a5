"""Numbers of one step on their way to the device and back, through memory that is kept.

Uploads have two sets of host memory in turn, so that a step's columns can be laid out while the
step before is still being sent. Downloads take memory that nobody holds; they hold it until they
are read, by whatever thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_service.kernels.device_stream import DeviceStream, Mark

Array = npt.NDArray[Any]

Upload = Callable[[Sequence[Array]], list[Tensor]]
"""Columns on the host -> the same on the device, each at a multiple of 16 bytes.

Triton compiles another kernel for addresses that are not."""

_ALIGNED_BYTES = 16
_FIRST_BYTES = 1 << 20


def upload_now(columns: Sequence[Array], device: torch.device) -> list[Tensor]:
    """`Upload` in memory of its own, for what is sent once."""
    return [torch.from_numpy(np.array(column)).to(device) for column in columns]


@dataclass(slots=True, eq=False)
class _Set:
    memory: Tensor
    num_used: int = 0
    sent: Mark | None = None
    outgrown: list[Tensor] = field(default_factory=list)
    """Memory that copies of this set may still be reading."""


class Uploads:
    """What steps send. `send` is an `Upload` between `begin` and `end` of a step."""

    def __init__(self, stream: DeviceStream, num_bytes: int = _FIRST_BYTES) -> None:
        """`num_bytes` of each set to begin with; it grows to what the largest step sends."""
        self._stream = stream
        self._sets = [_Set(stream.host_memory(num_bytes)) for _ in range(2)]

    def begin(self) -> None:
        """A step's first. Waits until what the step before the last sent has arrived."""
        self._sets.reverse()
        current = self._sets[0]
        if current.sent is not None:
            current.sent.wait()
            current.sent = None
        current.num_used = 0
        current.outgrown.clear()

    def send(self, columns: Sequence[Array]) -> list[Tensor]:
        """In one copy, which is on its way when this returns."""
        first = self._room_for(sum(_padded(column.nbytes) for column in columns))
        current = self._sets[0]
        host = current.memory.numpy()
        places = []
        for column in columns:
            begin = current.num_used
            places.append(begin - first)
            host[begin : begin + column.nbytes] = _bytes_of(column)
            current.num_used += _padded(column.nbytes)
        sent = self._stream.upload(current.memory[first : current.num_used])
        return [_typed(sent, place, c) for place, c in zip(places, columns, strict=True)]

    def end(self) -> None:
        """A step's last."""
        self._sets[0].sent = self._stream.mark()

    def _room_for(self, num_bytes: int) -> int:
        current = self._sets[0]
        if current.num_used + num_bytes > len(current.memory):
            current.outgrown.append(current.memory)
            size = max(2 * len(current.memory), num_bytes)
            current.memory = self._stream.host_memory(size)
            current.num_used = 0
        return current.num_used


class Downloads:
    """What steps answer."""

    def __init__(self, stream: DeviceStream) -> None:
        self._stream = stream
        self._free: list[Tensor] = []
        self._lock = threading.Lock()

    def fetch(self, tensors: Sequence[Tensor]) -> Arrival:
        """Their contents as of now in the stream's order."""
        num_bytes = sum(_padded(tensor.nbytes) for tensor in tensors)
        memory = self._take(num_bytes)
        targets, first = [], 0
        for tensor in tensors:
            target = memory[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            self._stream.download(tensor, target)
            targets.append(target)
            first += _padded(tensor.nbytes)
        return Arrival(self._stream.mark(), targets, lambda: self._give_back(memory))

    def _take(self, num_bytes: int) -> Tensor:
        """The last that came back, as it is large enough but for the first steps."""
        with self._lock:
            memory = self._free.pop() if self._free else None
        if memory is None or len(memory) < num_bytes:
            return self._stream.host_memory(max(num_bytes, _ALIGNED_BYTES))
        return memory

    def _give_back(self, memory: Tensor) -> None:
        with self._lock:
            self._free.append(memory)


class Arrival:
    """Tensors that are on their way to the host."""

    def __init__(
        self, mark: Mark, targets: Sequence[Tensor], give_back: Callable[[], None]
    ) -> None:
        self.mark = mark
        """Behind the copies, so behind all that they depend on."""
        self._targets = targets
        self._give_back = give_back

    def read(self) -> list[Array]:
        """Waits for them. Once only, as their memory is somebody else's from then on."""
        self.mark.wait()
        arrays = [target.numpy().copy() for target in self._targets]
        self._give_back()
        return arrays


def _bytes_of(column: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8)


def _typed(sent: Tensor, first: int, column: Array) -> Tensor:
    part = sent[first : first + column.nbytes].view(_torch_dtype(column.dtype))
    return part if column.ndim == 1 else part.view(column.shape)


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
