"""The compiled kernels for tests: absent without a compiler, a fault where they do not compile."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from executor_service.kernels.native import build, library
from executor_service.kernels.native.library import Library


def native_library(level: build.Level | None = None) -> Library:
    """For `level`, or the best one. Skips the test without a compiler."""
    try:
        build.find_compiler(os.environ)
    except build.BuildError as error:
        pytest.skip(str(error))
    return library.open_level(level or build.best_level(build.usable_flags()))


def block_maxima(library: Library, logits: Tensor) -> Tensor:
    """[num_rows, num_blocks] as a step leaves them beside [num_rows, vocab_size] logits."""
    block = 4096 // library.call.oct_num_maxima(4096)
    rest = torch.full((len(logits), -logits.shape[1] % block), -torch.inf)
    return torch.cat((logits, rest), 1).unflatten(1, (-1, block)).amax(2)
