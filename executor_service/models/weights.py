"""Where weights come from, as the model sees it: tensors by their HF name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from executor_service.kernels.weight_rows import Blocks, RowsHeader

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what) as loading goes on; units are those of the caller."""


class WeightSource(Protocol):
    """An opened checkpoint."""

    def __contains__(self, name: str) -> bool: ...

    def blocks(self, name: str) -> Blocks | None:
        """The same rows as `tensor`, in the blocks they are stored in; None if in no such kind."""
        ...

    def header(self, name: str) -> RowsHeader:
        """Of the same rows, which are not read for it. Raises ModelError if they are not there."""
        ...

    def tensor(self, name: str) -> Tensor:
        """float32, in HF's shape and row order. Raises ModelError if it is not there."""
        ...
