from __future__ import annotations

from array import array

from common.plan import BlockId
from scheduler_service.core.block_table import BlockTable
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.forks import SharedTails
from scheduler_service.core.sequence import Sequence
from tests.support.builders import make_request
from tests.support.plans import make_spec


def _owner(index: int) -> Sequence:
    sequence = Sequence(
        spec=make_spec(index, 3, index=index),
        request=make_request("r", [1, 2, 3], n=3),
        key=SequenceKey("r", index),
        arrival=0,
        tokens=array("i", [1, 2, 3]),
        max_len=9,
        end_token_ids=frozenset(),
    )
    sequence.table = BlockTable([BlockId(4), BlockId(8)])
    return sequence


def test_the_last_owner_left_writes_in_place() -> None:
    tails, owners = SharedTails(), [_owner(i) for i in range(3)]
    tails.add(list(owners))
    assert [tails.get(owner).block_id for owner in owners] == [8, 8, 8]
    tails.leave(owners[0])
    assert owners[0] not in tails
    assert tails.get(owners[1]).owners == owners[1:]
    tails.leave(owners[2])
    assert owners[1] not in tails


def test_leaving_twice_changes_nothing() -> None:
    tails, owners = SharedTails(), [_owner(i) for i in range(3)]
    tails.add(list(owners))
    tails.leave(owners[2])
    tails.leave(owners[2])
    assert tails.get(owners[0]).owners == owners[:2]
