"""What the layers of one step share on the GPU: the chunks' columns, and how they are attended.

All columns of a step are laid out on the host and sent in one copy. Chunks of one token are
attended in splits of their context, longer ones in tiles of their tokens: see `attention`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from executor_service.kernels.backend import StepLayout
from executor_service.kernels.launch_config import AttentionConfig
from executor_service.kernels.transfers import Upload

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkColumns:
    first_rows: Tensor
    """[num_chunks] int32, each chunk's first row of q"""
    starts: Tensor
    """[num_chunks] int32, position of that row"""
    lengths: Tensor
    """[num_chunks] int32"""
    tables: Tensor
    """[num_chunks, max_blocks] int32"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """Chunks of one token."""

    chunks: Tensor
    """[num_decodes] int32"""
    num_programs: int
    """That share the splits of one context, for each KV head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTiles:
    """Runs of query tokens of longer chunks."""

    chunks: Tensor
    """[num_tiles] int32"""
    firsts: Tensor
    """[num_tiles] int32, first token within the chunk"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaStep:
    slots: Tensor
    """[num_tokens] int64, where each token's K and V go"""
    chunks: ChunkColumns
    decodes: DecodeRows | None
    tiles: PromptTiles | None


def begin_step(layout: StepLayout, config: AttentionConfig, upload: Upload) -> CudaStep:
    lengths, starts = layout.lengths.numpy(), layout.starts.numpy()
    decodes = np.flatnonzero(lengths == 1).astype(np.int32)
    tile_chunks, tile_firsts = _tiles(lengths, starts, config.tile_tokens)
    tables, slots = layout.block_tables.numpy(), layout.slot_mapping.numpy()
    first_rows = (np.cumsum(lengths) - lengths).astype(np.int32)
    parts = upload([first_rows, starts, lengths, decodes, tile_chunks, tile_firsts, tables, slots])
    longest = int(starts[decodes].max()) if len(decodes) else 0
    return CudaStep(
        slots=parts[7],
        chunks=ChunkColumns(
            first_rows=parts[0],
            starts=parts[1],
            lengths=parts[2],
            tables=parts[6],
        ),
        decodes=(
            DecodeRows(
                chunks=parts[3],
                num_programs=min(longest // config.split_slots + 1, config.max_splits),
            )
            if len(decodes)
            else None
        ),
        tiles=PromptTiles(chunks=parts[4], firsts=parts[5]) if len(tile_chunks) else None,
    )


def _tiles(lengths: Ints, starts: Ints, tile_tokens: int) -> tuple[Ints, Ints]:
    """Chunk and first token of every tile, those with most context first: they take longest."""
    chunks = np.flatnonzero(lengths > 1)
    counts = -(-lengths[chunks] // tile_tokens)
    tile_chunks = np.repeat(chunks, counts)
    tile_firsts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    tile_firsts = tile_firsts * tile_tokens
    order = np.argsort(-(starts[tile_chunks] + tile_firsts), kind="stable")
    return tile_chunks[order].astype(np.int32), tile_firsts[order].astype(np.int32)
