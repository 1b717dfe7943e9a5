"""What this room needs of a model runner; the real one and scripted ones provide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from common.plan import StepPlan, StepResult


class RunnerSpec(Protocol):
    """What was found out at start; fields as in HelloReply and GetInfoReply."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def model_name(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def kv_bytes_per_token(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kv_cache_dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...


class StepRunner(Protocol):
    """Runs plans in order, on the device thread alone."""

    @property
    def spec(self) -> RunnerSpec: ...

    @property
    def model_files(self) -> Mapping[str, bytes]:
        """What GetModel sends, by file name."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Blocks until the step is done. Raises only when the device cannot go on."""

    def forget_samples(self) -> None:
        """The stream ended: the next plan takes no input from the last one's samples."""


class PendingStep(Protocol):
    def result(self) -> StepResult:
        """Blocks until the step is done, on any thread. Raises when the device cannot go on."""


@runtime_checkable
class RunAheadRunner(StepRunner, Protocol):
    """One whose device is given a step's work while earlier ones still run."""

    def launch(self, plan: StepPlan) -> PendingStep:
        """Never waits for a step to end, unless this plan depends on more than the device knows.
        Raises only when the device cannot go on."""
