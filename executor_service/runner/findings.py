"""What was found wrong with one plan, by sequence."""

from __future__ import annotations

from common.plan import ErrorCode, SequenceError, SequenceId


class Findings:
    """Errors by sequence, the first of each; `stopped` are those whose chunk must not run."""

    def __init__(self) -> None:
        self.errors: dict[SequenceId, SequenceError] = {}
        self.stopped: set[SequenceId] = set()

    def add(
        self,
        sequence_id: SequenceId,
        message: str,
        code: ErrorCode = ErrorCode.INVALID_PLAN,
    ) -> None:
        error = SequenceError(sequence_id=sequence_id, code=code, message=message)
        self.errors.setdefault(sequence_id, error)

    def stop(
        self,
        sequence_id: SequenceId,
        message: str,
        code: ErrorCode = ErrorCode.INVALID_PLAN,
    ) -> None:
        self.add(sequence_id, message, code)
        self.stopped.add(sequence_id)
