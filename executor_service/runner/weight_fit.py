"""Refuses weights that are larger than memory, before any is read."""

from __future__ import annotations

from common.errors import ModelError
from common.kv_size import larger_size_text, size_text
from executor_service.kernels.weight_rows import WeightRules
from executor_service.models.checkpoint import Checkpoint
from executor_service.models.weight_sizes import weight_bytes
from executor_service.runner.device import B, Device


def check_weights_fit(device: Device[B], backend: B, checkpoint: Checkpoint) -> None:
    """ModelError saying what they take, what is free and what would help."""

    def bytes_by(rules: WeightRules) -> int:
        return weight_bytes(backend, checkpoint.config, checkpoint.weights, rules)

    needed, free = bytes_by(backend.weight_rules), device.free_bytes()
    if needed > free:
        raise ModelError(
            f"the weights do not fit: they take {larger_size_text(needed, free)} and"
            f" {size_text(free)} are free; {device.smaller_weights(bytes_by)}"
        )
