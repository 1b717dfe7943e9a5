"""The order in which a device does its work, and copies to and from it that nobody waits for.

The host runs ahead of the device: it puts launches and copies into the device's stream and goes on.
Memory that a copy reads or writes is therefore not the host's again until the stream has passed it,
which a mark tells.

`CudaStream` has been run on no GPU yet. What is built on it is tested with a stream that does a
copy to the host only when somebody waits for it, and checks then that nothing sent was changed.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A place in the order of a stream."""

    def wait(self) -> None:
        """Blocks the calling thread, whichever it is, until the stream has passed this place."""
        ...

    def ns_since(self, earlier: Mark) -> int:
        """Time on the device between two places that it has passed."""
        ...


class DeviceStream(Protocol):
    """One device's work, in order. Put into by one thread at a time."""

    @property
    def device(self) -> torch.device: ...

    def host_memory(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 on the host, where copies run beside the host's own work."""
        ...

    def upload(self, source: Tensor) -> Tensor:
        """A tensor on the device that gets `source`, which lies in such memory.

        The source must not be changed before a mark set after this is passed.
        """
        ...

    def download(self, source: Tensor, target: Tensor) -> None:
        """Copies to such memory. The target must not be read before a mark set after this is
        passed."""
        ...

    def mark(self) -> Mark: ...


class CudaStream:
    """`DeviceStream` on the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def upload(self, source: Tensor) -> Tensor:
        return source.to(self.device, non_blocking=True)

    def download(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return _CudaMark(event)


class _CudaMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()

    def ns_since(self, earlier: Mark) -> int:
        assert isinstance(earlier, _CudaMark), "marks of one stream"
        return int(earlier.event.elapsed_time(self.event) * 1e6)
