"""`python -m tests.support.sanitized LEVEL ARGUMENTS`: pytest with kernels that watch every access.

The address sanitizer must be preloaded. Memory that kernels are given is the heap's, each piece by
itself: what lies beyond one is then known to be out of range.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from executor_service.kernels.native import build, pages, weights

FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
)


def sanitized(level: build.Level) -> build.Level:
    return replace(level, name=f"{level.name}-sanitized", flags=(*level.flags, *FLAGS))


def zeroed(num_bytes: int) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8)


def main(name: str, arguments: list[str]) -> int:
    build.LEVELS = (sanitized(build.chosen_level({"OCTAVO_NATIVE": name})),)
    pages.zeroed = zeroed
    weights._CHUNK_BYTES = 0
    del os.environ["LD_PRELOAD"]  # Compilers do without.
    return pytest.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
