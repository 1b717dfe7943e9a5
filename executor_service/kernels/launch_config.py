"""How big the pieces are that each kernel works on: tile sizes, warps and pipeline stages by chip.

A table instead of autotuning: a measured choice would differ from run to run, and with it the
order of sums, and there is nothing to measure on where kernels are only compiled. The figures keep
every kernel free of register spills and within the chip's shared memory (`make check-aot`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor_service.kernels.kv_kind import KVKind

AMPERE = 80
HOPPER = 90
BLACKWELL = 100

_FIRST_FP8_ARCH = 89
_CODINGS = {KVKind.FP8_E4M3: "fp8", KVKind.INT8: "int8", KVKind.INT4: "int4"}

_MIN_DOT_ROWS = 16
"""The least number of rows that tensor cores multiply."""
_MIN_SPLIT_SLOTS = 256
_MAX_SPLITS = 32
_ROWWISE_ELEMENTS = 2048
_ELEMENTS_PER_WARP = 512
_MAX_WARPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The attention of one model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    """Most tokens of one sequence."""
    window: int | None = None
    """How many positions up to its own a token sees; None: all."""
    soft_cap: float | None = None
    """Scores are bent to stay within it, by its hyperbolic tangent; None: they are not."""

    @property
    def group_size(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    def split_slots(self) -> int:
        """Such that no token sees more than _MAX_SPLITS splits."""
        if self.window is None or self.window >= self.max_context:
            return max(_MIN_SPLIT_SLOTS, power_of_two(-(-self.max_context // _MAX_SPLITS)))
        # The edges of a window cut two splits.
        return max(_MIN_SPLIT_SLOTS, power_of_two(-(-self.window // (_MAX_SPLITS - 1))))

    def max_splits(self) -> int:
        """That one token sees."""
        splits = -(-self.max_context // self.split_slots())
        if self.window is None:
            return splits
        return min(splits, (self.window - 2) // self.split_slots() + 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One program's share of a matrix product."""

    rows: int
    """Query tokens times query heads that share a KV head."""
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Everything fixed at start about the attention kernel.

    Prompts and decodes run with the same warps and stages, as one launch holds both: so a row is
    summed in the same order whether its step has work of the other kind or not.
    """

    shape: AttentionShape
    head_dim_pad: int
    """A power of two; dimensions beyond head_dim are masked."""
    prompt: Tile
    decode: Tile
    num_warps: int
    num_stages: int
    split_slots: int
    """Slots that one decode split covers. It depends on the model alone, never on the batch:
    the same sums in the same order for a sequence, whoever it shares a step with."""
    max_splits: int
    """A power of two."""
    coding: str
    """How kernels read and write the pool, from `coding_of`."""

    @property
    def tile_tokens(self) -> int:
        """Query tokens of one prompt tile."""
        return self.prompt.rows // self.shape.group_size


def coding_of(kind: KVKind, arch: int) -> str:
    """How kernels for a chip treat a pool: "float", "int8", "int4", and for fp8 "fp8" by the chip's
    own conversion or "fp8_bits" by integer operations, which give the same values."""
    coding = _CODINGS.get(kind, "float")
    return "fp8_bits" if coding == "fp8" and arch < _FIRST_FP8_ARCH else coding


def attention_config(
    shape: AttentionShape, dtype: torch.dtype, arch: int, kind: KVKind
) -> AttentionConfig:
    """arch: compute capability as major * 10 + minor. kind: of the pool."""
    head_dim_pad = power_of_two(shape.head_dim)
    group_rows = power_of_two(shape.group_size)
    coding = coding_of(kind, arch)
    prompt = _prompt_tile(head_dim_pad, dtype, arch, coding)
    return AttentionConfig(
        shape=shape,
        head_dim_pad=head_dim_pad,
        prompt=Tile(rows=max(prompt.rows, group_rows), slots=prompt.slots),
        decode=Tile(
            rows=max(_MIN_DOT_ROWS, group_rows), slots=_decode_slots(head_dim_pad, dtype, coding)
        ),
        # Decodes live of many reads at once, so of many programs on a multiprocessor: few warps.
        # Wider heads spill with four.
        num_warps=8 if head_dim_pad > 128 else 4,
        num_stages=_num_stages(head_dim_pad, dtype),
        split_slots=shape.split_slots(),
        max_splits=power_of_two(shape.max_splits()),
        coding=coding,
    )


def _prompt_tile(head_dim_pad: int, dtype: torch.dtype, arch: int, coding: str) -> Tile:
    if dtype == torch.float32:
        # Small, as products in full float32 are no tensor-core work and keep it all in registers:
        # with 32 slots of heads below 256 one chip or another spills.
        return Tile(rows=_MIN_DOT_ROWS, slots=32 if head_dim_pad > 128 else 16)
    if arch < HOPPER and head_dim_pad <= 128 and coding in ("int8", "int4"):
        # 64 rows spill beside codes with scales, as do 32 slots of int4 for wide heads and 64 for
        # others.
        return Tile(rows=32, slots=64 if coding == "int4" and head_dim_pad > 64 else 32)
    # Two programs of 64 rows and four warps fill a multiprocessor as one of 128 and eight would.
    if arch < HOPPER or head_dim_pad > 128 or (arch >= BLACKWELL and coding == "int4"):
        # 64 slots spill there.
        return Tile(rows=64, slots=32)
    return Tile(rows=64, slots=64)


def _decode_slots(head_dim_pad: int, dtype: torch.dtype, coding: str) -> int:
    if dtype == torch.float32:
        # With 32 slots of wider heads one chip or another spills, whatever the warps.
        return 16 if head_dim_pad > 64 else 32
    if coding == "float":
        return 64 if head_dim_pad <= 128 else 32
    # Codes and the values made of them are live together: with half as many slots there is room
    # for one more program on a multiprocessor, and about as many bytes are on their way.
    return 32 if head_dim_pad <= 128 else 16


def _num_stages(head_dim_pad: int, dtype: torch.dtype) -> int:
    if dtype == torch.float32:
        return 1
    return 2 if head_dim_pad > 128 else 3


def power_of_two(number: int) -> int:
    """The least one that is not below."""
    return 1 << (number - 1).bit_length()


def rows_per_program(width_pad: int) -> int:
    """Rows of a row-wise kernel that fill one program."""
    return max(1, _ROWWISE_ELEMENTS // width_pad)


def num_warps(num_elements: int) -> int:
    """For elementwise work and reductions over so many elements a program."""
    return min(_MAX_WARPS, max(4, num_elements // _ELEMENTS_PER_WARP))
