"""Writes common/philox_vectors.json: python -m tests.common.write_philox_vectors

The numbers are made with Python integers, apart from the numpy code that they check.
"""

from __future__ import annotations

import json
from pathlib import Path

VECTORS = Path(__file__).parents[2] / "common" / "philox_vectors.json"

_PLACES = [
    # seed, position, index, purpose
    (0, 0, 0, 0),
    (0, 1, 0, 0),
    (1, 0, 0, 0),
    (42, 17, 0, 0),
    (42, 17, 1, 0),
    (42, 17, 0, 1),
    (42, 17, 0, 2),
    (2**32, 5, 3, 0),
    (2**64 - 1, 131_071, 127, 0),
    (0x0123456789ABCDEF, 2**31 - 1, 4095, 2),
]


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    mask = 0xFFFFFFFF
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        product0, product2 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (product2 >> 32) ^ c1 ^ k0,
            product2 & mask,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & mask,
        )
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return [c0, c1, c2, c3]


def vectors() -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for seed, position, index, purpose in _PLACES:
        words = philox4x32([position, index, purpose, 0], [seed & 0xFFFFFFFF, seed >> 32])
        made.append(
            {
                "seed": str(seed),  # beyond what JSON numbers hold exactly
                "position": position,
                "index": index,
                "purpose": purpose,
                "words": words,
                "uniform_times_2_24": words[0] >> 8,
            }
        )
    return made


if __name__ == "__main__":
    lines = ",\n".join("  " + json.dumps(vector) for vector in vectors())
    VECTORS.write_text(f"[\n{lines}\n]\n")
