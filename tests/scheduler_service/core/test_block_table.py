from __future__ import annotations

from common.plan import BlockId, TableView
from scheduler_service.core.block_table import BlockTable


def test_a_view_taken_before_an_append_still_reads_the_same() -> None:
    table = BlockTable([BlockId(4), BlockId(2)])
    view = TableView(table.buffer, len(table))
    for block in range(100):
        table.append(BlockId(block))
    assert list(view.buffer[: view.length]) == [4, 2]
    assert table.block_ids[:3] == [4, 2, 0]
