"""New tensors hold NaN, not what happened to lie there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def filled_with_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's own signature
    try:
        assert torch.empty(4).isnan().all(), "torch no longer fills new memory"
        yield
    finally:
        torch.use_deterministic_algorithms(False)  # noqa: FBT003
