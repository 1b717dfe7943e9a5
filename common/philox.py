"""Philox4x32-10: counter-based random numbers, so that a draw depends on its place alone.

Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). The key is the
request's seed (low word, high word); the counter is (absolute position of the sampled token,
sequence index, purpose, 0). A draw is u = (x0 >> 8) * 2^-24, in [0, 1) and exact in float32.
Every backend has to give these very numbers; `philox_vectors.json` holds samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

UInt32s = npt.NDArray[np.uint32]

_NUM_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


class Purpose(IntEnum):
    """What a draw decides; the third word of the counter."""

    SAMPLE = 0
    ACCEPT = 1
    """Whether a drafted token is accepted."""
    RESIDUAL = 2
    """The token that replaces the first rejected draft."""


def philox4x32(counter: npt.ArrayLike, key: npt.ArrayLike) -> UInt32s:
    """Ten rounds. counter: [..., 4] uint32, key: [..., 2] uint32; returns [..., 4] uint32."""
    words = np.asarray(counter, np.uint32).astype(np.uint64)
    keys = np.asarray(key, np.uint32).astype(np.uint64)
    x0, x1, x2, x3 = (words[..., i] for i in range(4))
    k0, k1 = keys[..., 0], keys[..., 1]
    for _ in range(_NUM_ROUNDS):
        product0, product2 = _MULTIPLIERS[0] * x0, _MULTIPLIERS[1] * x2
        x0, x2 = (product2 >> _WORD) ^ x1 ^ k0, (product0 >> _WORD) ^ x3 ^ k1
        x1, x3 = product2 & _LOW, product0 & _LOW
        k0, k1 = (k0 + np.uint64(_WEYL[0])) & _LOW, (k1 + np.uint64(_WEYL[1])) & _LOW
    return np.stack((x0, x1, x2, x3), axis=-1).astype(np.uint32)


def uniforms(
    seeds: Sequence[int] | npt.NDArray[np.uint64],
    positions: npt.ArrayLike,
    indexes: npt.ArrayLike,
    purpose: Purpose,
) -> npt.NDArray[np.float32]:
    """One uniform in [0, 1) per entry; all arguments but `purpose` have equal length."""
    keys = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in map(int, seeds)], np.uint64)
    counter = np.zeros((len(keys), 4), np.uint32)
    counter[:, 0] = np.asarray(positions)
    counter[:, 1] = np.asarray(indexes)
    counter[:, 2] = purpose
    key = np.stack((keys & _LOW, keys >> _WORD), axis=-1).astype(np.uint32)
    words = philox4x32(counter, key)[:, 0]
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
