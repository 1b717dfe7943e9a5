"""KVPool: the tensors behind block ids. Allocated once, in the backend's own layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class PoolBackend(Protocol):
    """What the pool needs of a backend."""

    def allocate_kv(self, shape: Any) -> Any: ...
    def copy_blocks(self, kv: Any, sources: Tensor, destinations: Tensor) -> None: ...
    def read_blocks(self, kv: Any, block_ids: Tensor) -> Tensor: ...
    def fill_blocks(self, kv: Any, block_ids: Tensor, value: float) -> None: ...


class KVPool:
    """Keys and values of every layer, addressed by block id. Who owns a block is not known here."""

    def __init__(self, backend: PoolBackend, shape: Any) -> None:
        self._backend = backend
        self.shape = shape
        self.storage = backend.allocate_kv(shape)

    @property
    def num_bytes(self) -> int:
        return int(self.storage.nbytes)

    @torch.inference_mode()
    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copies whole blocks in all layers, pair by pair in order."""
        if not sources:
            return
        self._backend.copy_blocks(self.storage, _ids(sources), _ids(destinations))

    def read(self, block_ids: Sequence[int]) -> Tensor:
        """[num_layers, 2, n, block_size, num_kv_heads, head_dim], a copy."""
        return self._backend.read_blocks(self.storage, _ids(block_ids))

    @torch.inference_mode()
    def poison(self, block_ids: Sequence[int]) -> None:
        """Fills blocks with NaN, so that a read of what nobody wrote shows in the output."""
        self._backend.fill_blocks(self.storage, _ids(block_ids), float("nan"))


def _ids(block_ids: Sequence[int]) -> Tensor:
    return torch.tensor(list(block_ids), dtype=torch.int64)
