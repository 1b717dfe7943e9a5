"""Random blocks of the GGUF kinds: any bytes are codes, only the halves must be numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from executor_service.kernels.weight_rows import WeightKind

_HALVES = {
    WeightKind.Q4_0: ((0, 0.01),),
    WeightKind.Q4_1: ((0, 0.01), (2, -0.08)),
    WeightKind.Q8_0: ((0, 0.0007),),
    WeightKind.Q4_K: ((0, 0.0003), (2, 0.002)),
    WeightKind.Q6_K: ((208, 0.00005),),
}
"""Where a block has a half, and about how large it is for weights of about 0.05."""


def gguf_type(kind: WeightKind) -> GGMLQuantizationType:
    return GGMLQuantizationType[kind.name]


def random_blocks(
    kind: WeightKind, out_features: int, in_features: int, *, seed: int = 0
) -> npt.NDArray[np.uint8]:
    """[out_features, bytes of a row]"""
    generator = np.random.default_rng(seed)
    elements, num_bytes = GGML_QUANT_SIZES[gguf_type(kind)]
    shape = (out_features, in_features // elements, num_bytes)
    blocks = generator.integers(0, 256, shape, dtype=np.uint8)
    for place, size in _HALVES[kind]:
        halves = (generator.uniform(0.5, 1.5, shape[:2]) * size).astype(np.float16)
        blocks[:, :, place : place + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(out_features, -1)
