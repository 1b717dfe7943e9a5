"""What a compiled kernel takes, and what it may take."""

from __future__ import annotations

from dataclasses import asdict, dataclass

SHARED_LIMITS = {80: 166_912, 90: 232_448, 100: 232_448}
"""Bytes of shared memory that one block of threads may have, as NVIDIA documents them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one kernel on one chip."""

    registers: int
    """Of one thread."""
    spills: int
    """Instructions that move registers to or from local memory."""
    shared_bytes: int
    """Of one block of threads."""
    mma: int
    """Tensor-core instructions of a warp (HMMA)."""
    wgmma: int
    """Tensor-core instructions of a warp group (HGMMA)."""
    tcgen05: int
    """Tensor-core instructions of the fifth generation (UTCHMMA)."""

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def problems(name: str, figures: Figures, arch: int, most_spills: int = 0) -> list[str]:
    """What no kernel may show. `name` ends with the kernel's."""
    found = []
    if figures.spills > most_spills:
        found.append(f"{figures.spills} spills")
    if figures.shared_bytes > SHARED_LIMITS[arch]:
        found.append(f"{figures.shared_bytes} bytes of shared memory are over the chip's limit")
    if "float32" in name or "attention" not in name:
        return found
    if "of prompts" not in name and not figures.mma:
        found.append("no tensor-core instructions of a warp")
    if "of decodes" not in name and not _widest(figures, arch):
        found.append("no tensor-core instructions of the chip's widest kind")
    return found


def _widest(figures: Figures, arch: int) -> int:
    """How many tensor-core instructions there are of those that multiply the most at once."""
    return {80: figures.mma, 90: figures.wgmma, 100: figures.tcgen05}[arch]
