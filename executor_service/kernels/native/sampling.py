"""Draws of a batch as one native call. The columns are those of `oct_draw` in src/sample.h."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_service.kernels.native.library import Library

DRAW = np.dtype(
    [
        ("seed", np.uint64),
        ("top_p", np.float64),
        ("history", np.uint64),
        ("bias_tokens", np.uint64),
        ("bias_values", np.uint64),
        ("banned", np.uint64),
        ("history_length", np.int32),
        ("num_prompt", np.int32),
        ("num_biases", np.int32),
        ("num_banned", np.int32),
        ("row", np.int32),
        ("position", np.int32),
        ("index", np.int32),
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("min_p", np.float32),
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("token", np.int32),
        ("status", np.int32),
    ],
    align=True,
)
DRAWN, NOT_FINITE, NO_CANDIDATE = range(3)


class TokenDraws:
    """Its workspace, for one vocabulary. Not for several threads at once."""

    def __init__(self, library: Library, vocab_size: int, num_threads: int) -> None:
        self._call = library.call
        self._vocab_size = vocab_size
        self._num_threads = num_threads
        num_bytes = self._call.oct_sample_workspace(vocab_size, num_threads)
        self._workspace = torch.zeros(num_bytes, dtype=torch.uint8)

    def run(self, logits: Tensor, draws: npt.NDArray[Any]) -> None:
        """Fills in `token` and `status`. logits: [num_rows, vocab_size] float32, dense.

        What the addresses in `draws` point to must live until this returns.
        """
        self._call.oct_sample(
            logits.data_ptr(),
            self._vocab_size,
            draws.ctypes.data,
            len(draws),
            self._num_threads,
            self._workspace.data_ptr(),
        )
