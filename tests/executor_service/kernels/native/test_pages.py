from __future__ import annotations

from pathlib import Path

import pytest

from executor_service.kernels.native import pages

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_pages_are_zero_and_can_be_written() -> None:
    memory = pages.zeroed(5000)
    assert memory.shape == (5000,)
    assert not memory.any()
    memory.fill_(7)
    assert (memory == 7).all()
    assert pages.zeroed(0).numel() == 0


@pytest.mark.skipif(
    not HUGE.exists() or "[never]" in HUGE.read_text(), reason="no huge pages on this machine"
)
def test_a_large_piece_may_have_huge_pages() -> None:
    memory = pages.zeroed(64 << 20)
    address = memory.data_ptr() + (32 << 20)
    flags, inside = "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split()[0]
        if "-" in name and not name.endswith(":"):
            first, last = (int(part, 16) for part in name.split("-"))
            inside = first <= address < last
        elif inside and name == "VmFlags:":
            flags = line
    assert " hg" in flags
