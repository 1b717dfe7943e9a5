from __future__ import annotations

import pytest

from common.errors import OwnershipError, UnavailableError
from executor_service.rpc.ownership import CLAIM_GRACE_S, Ownership


def claimed(scheduler_id: str = "a", epoch: int = 0) -> Ownership:
    ownership = Ownership()
    ownership.claim(scheduler_id, epoch, now=0.0)
    return ownership


def test_unowned_is_granted_the_first_epoch() -> None:
    ownership = Ownership()
    assert ownership.held_by(0.0) is None
    owner = ownership.claim("a", 0, now=0.0)
    assert (owner.scheduler_id, owner.epoch) == ("a", 1)


def test_epoch_zero_is_refused_while_the_owners_stream_is_open_and_names_it() -> None:
    ownership = claimed()
    ownership.attach()
    with pytest.raises(OwnershipError, match=r"owner: a, epoch 1"):
        ownership.claim("b", 0, now=1e9)


def test_epoch_zero_is_granted_once_the_owners_stream_is_gone() -> None:
    ownership = claimed()
    ownership.detach(ownership.attach())
    assert ownership.claim("b", 0, now=0.0).epoch == 2


def test_claim_without_a_stream_holds_for_its_grace_only() -> None:
    ownership = claimed()
    with pytest.raises(OwnershipError):
        ownership.claim("b", 0, now=CLAIM_GRACE_S - 0.1)
    assert ownership.claim("b", 0, now=CLAIM_GRACE_S + 0.1).epoch == 2


def test_the_owner_itself_may_always_ask_for_a_new_epoch() -> None:
    ownership = claimed()
    ownership.attach()
    assert ownership.claim("a", 0, now=0.0).epoch == 2


def test_equal_epoch_of_the_same_scheduler_is_a_reconnect() -> None:
    ownership = claimed(epoch=5)
    ownership.attach()
    assert ownership.claim("a", 5, now=0.0).epoch == 5
    assert not ownership.has_stream
    ownership.attach()


def test_equal_epoch_of_another_scheduler_is_refused() -> None:
    ownership = claimed(epoch=5)
    with pytest.raises(OwnershipError, match="another scheduler"):
        ownership.claim("b", 5, now=1e9)


def test_lower_epoch_is_refused_even_of_the_same_scheduler() -> None:
    ownership = claimed(epoch=5)
    for scheduler_id in ("a", "b"):
        with pytest.raises(OwnershipError, match="below 5"):
            ownership.claim(scheduler_id, 4, now=1e9)


def test_higher_epoch_is_granted_over_a_live_stream() -> None:
    ownership = claimed(epoch=5)
    ownership.attach()
    assert ownership.claim("b", 9, now=0.0).epoch == 9
    assert not ownership.has_stream


def test_highest_epoch_is_remembered_after_everyone_left() -> None:
    ownership = claimed(epoch=5)
    ownership.detach(ownership.attach())
    assert ownership.claim("b", 0, now=1e9).epoch == 6
    assert ownership.max_epoch == 6


def test_end_of_a_superseded_stream_does_not_detach_the_new_owners() -> None:
    ownership = claimed()
    old = ownership.attach()
    ownership.claim("b", 7, now=0.0)
    ownership.attach()
    ownership.detach(old)
    assert ownership.has_stream
    with pytest.raises(OwnershipError):
        ownership.claim("c", 0, now=1e9)


def test_end_of_the_stream_before_a_reconnect_does_not_detach_the_new_one() -> None:
    ownership = claimed(epoch=5)
    old = ownership.attach()
    ownership.claim("a", 5, now=0.0)
    ownership.attach()
    ownership.detach(old)
    assert ownership.has_stream


def test_stream_needs_an_owner_and_an_epoch_has_one_stream() -> None:
    with pytest.raises(OwnershipError, match="Hello"):
        Ownership().attach()
    ownership = claimed()
    ownership.attach()
    with pytest.raises(OwnershipError, match="open already"):
        ownership.attach()


def test_draining_refuses_every_claim() -> None:
    ownership = claimed()
    ownership.drain()
    for scheduler_id, epoch in (("a", 1), ("a", 0), ("b", 0), ("b", 9)):
        with pytest.raises(UnavailableError, match="draining"):
            ownership.claim(scheduler_id, epoch, now=1e9)
