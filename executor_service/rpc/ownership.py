"""Which scheduler owns this executor. Epochs fence: the highest ever granted wins.

An owner that was paused and comes back finds its epoch outgrown, whatever it or the registry
believes, and its stream ended. The highest epoch is remembered for the life of the process.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import OwnershipError, UnavailableError

CLAIM_GRACE_S = 5.0
"""How long a claim holds against others before its stream is opened: the model is fetched then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    scheduler_id: str
    epoch: int


class Ownership:
    """Decides claims. Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._owner: Owner | None = None
        self._max_epoch = 0
        self._has_stream = False
        self._held_until = 0.0
        self._is_draining = False

    @property
    def owner(self) -> Owner | None:
        """The last one granted; it may have no stream any more."""
        return self._owner

    @property
    def max_epoch(self) -> int:
        return self._max_epoch

    @property
    def has_stream(self) -> bool:
        return self._has_stream

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def drain(self) -> None:
        """Refuses claims from now on. Idempotent."""
        self._is_draining = True

    def claim(self, scheduler_id: str, epoch: int, now: float) -> Owner:
        """Grants the executor, or raises. A grant outlives any stream open at the time.

        epoch 0 asks for the next free one.
        """
        if self._is_draining:
            raise UnavailableError("this executor is draining")
        granted = self._max_epoch + 1 if epoch == 0 else epoch
        owner = self._owner
        if epoch == 0:
            self._refuse_if_held(scheduler_id, now)
        elif epoch < self._max_epoch:
            raise OwnershipError(f"epoch {epoch} is below {self._max_epoch}{self._named()}")
        elif owner is not None and epoch == owner.epoch and scheduler_id != owner.scheduler_id:
            raise OwnershipError(f"epoch {epoch} belongs to another scheduler{self._named()}")
        self._owner = Owner(scheduler_id=scheduler_id, epoch=granted)
        self._max_epoch = granted
        self._has_stream = False
        self._held_until = now + CLAIM_GRACE_S
        return self._owner

    def attach(self) -> Owner:
        """A stream opens; returns the owner whose epoch its messages must carry."""
        if self._owner is None:
            raise OwnershipError("nobody owns this executor: say Hello first")
        if self._has_stream:
            raise OwnershipError(f"a stream is open already{self._named()}")
        self._has_stream = True
        return self._owner

    def detach(self, owner: Owner) -> None:
        """The stream that `attach` gave `owner` to has ended."""
        if owner is self._owner:
            self._has_stream = False
            self._held_until = 0.0

    def held_by(self, now: float) -> Owner | None:
        """The owner while a claim with epoch 0 by another scheduler would be refused."""
        return self._owner if self._has_stream or now < self._held_until else None

    def _refuse_if_held(self, scheduler_id: str, now: float) -> None:
        holder = self.held_by(now)
        if holder is not None and holder.scheduler_id != scheduler_id:
            raise OwnershipError(f"the executor is taken{self._named()}")

    def _named(self) -> str:
        if self._owner is None:
            return ""
        return f"; owner: {self._owner.scheduler_id}, epoch {self._owner.epoch}"
