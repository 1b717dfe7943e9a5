"""Weights packed for the C kernels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from executor_service.kernels.native.library import Library
from executor_service.kernels.native.structs import Weight

FLOAT32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeWeight:
    """[out_features, in_features] in the layout of its kind."""

    kind: int
    out_features: int
    in_features: int
    data: Tensor

    @property
    def num_bytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def struct(self, bias: Tensor | None) -> Weight:
        """Points to the data and the bias: both must outlive it."""
        return Weight(
            kind=self.kind,
            out_features=self.out_features,
            in_features=self.in_features,
            data=self.data.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
        )


def pack_float32(library: Library, weight: Tensor) -> NativeWeight:
    return NativeWeight(
        kind=FLOAT32,
        out_features=weight.shape[0],
        in_features=weight.shape[1],
        data=weight.contiguous(),
    )
