"""What the elements of a KV pool may be stored as."""

from __future__ import annotations

from enum import Enum

import torch

INT4_GROUP = 32
"""Dimensions of a head that share a scale and an offset. Halving it costs a bit an element."""

FP8_LARGEST = 448.0
"""Of e4m3; what is beyond is stored as it."""


class KVKind(Enum):
    """Values are the names that --kv-cache-dtype takes.

    fp8_e4m3 has no scale: a byte an element and nothing else, as it is meant where speed is. int8
    has one scale for each token, head and side; int4 a scale and an offset for every 32 dimensions
    of them. `reference.encode_kv` is their definition.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FP8_E4M3 = "fp8_e4m3"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def storage(self) -> torch.dtype:
        """Of the tensor that holds the codes. fp8 is bytes, as some chips know no such type."""
        return _STORAGE[self]

    def row_elements(self, head_dim: int) -> int:
        """Of `storage` that hold one head of one token. int4 has two dimensions in a byte."""
        return head_dim // 2 if self is KVKind.INT4 else head_dim


_STORAGE = {
    KVKind.FLOAT32: torch.float32,
    KVKind.FLOAT16: torch.float16,
    KVKind.BFLOAT16: torch.bfloat16,
    KVKind.FP8_E4M3: torch.uint8,
    KVKind.INT8: torch.int8,
    KVKind.INT4: torch.uint8,
}


def kind_of(dtype: torch.dtype) -> KVKind:
    """The kind whose codes are of a dtype of its own name."""
    return KVKind(str(dtype).removeprefix("torch."))


def num_groups(head_dim: int) -> int:
    """Of int4, the last of fewer dimensions where 32 does not divide."""
    return -(-head_dim // INT4_GROUP)
