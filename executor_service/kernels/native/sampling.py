"""Draws of a batch as one native call. The fields are those of `oct_draw` in src/sample.h."""

from __future__ import annotations

from array import array

import numpy as np
from torch import Tensor

from executor_service.kernels.native import pages
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
WIDTH = DRAW.itemsize // 4
"""Of a draw, in int32."""
DRAWN, NOT_FINITE, NO_CANDIDATE = range(3)


def column(name: str) -> slice:
    """Where an int32 field is in the draws of a batch, as an array of int32."""
    assert DRAW.fields is not None, "it has fields"
    dtype, offset, *_ = DRAW.fields[name]
    assert dtype == np.int32, name
    return slice(offset // 4, None, WIDTH)


def draws_bytes(library: Library, vocab_size: int, num_threads: int) -> int:
    """What a TokenDraws allocates."""
    return int(library.call.oct_sample_workspace(vocab_size, num_threads))


class TokenDraws:
    """Its workspace, for one vocabulary. Not for several threads at once."""

    def __init__(self, library: Library, vocab_size: int, num_threads: int) -> None:
        self._call = library.call
        self._vocab_size = vocab_size
        self._num_threads = num_threads
        num_bytes = draws_bytes(library, vocab_size, num_threads)
        self._workspace = pages.zeroed(num_bytes)
        self._workspace_at = self._workspace.data_ptr()

    def run(self, logits: Tensor, maxima: Tensor | None, draws: array[int]) -> None:
        """Fills in `token` and `status`. logits: [num_rows, vocab_size] float32, dense; maxima: of
        their blocks, as WholeStep has them; draws: of DRAW, as int32.

        What the addresses in `draws` point to must live until this returns.
        """
        self._call.oct_sample(
            logits.data_ptr(),
            None if maxima is None else maxima.data_ptr(),
            self._vocab_size,
            draws.buffer_info()[0],
            len(draws) // WIDTH,
            self._num_threads,
            self._workspace_at,
        )
