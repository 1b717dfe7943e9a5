"""The one model this scheduler serves, as its executors tell it, and the limits that follow."""

from __future__ import annotations

import logging

from common.errors import ModelError
from common.protocol import ROWS_PER_SEQUENCE
from scheduler_service.config import SchedulerConfig
from scheduler_service.core.policy import POLICIES
from scheduler_service.core.scheduler import Scheduler, SchedulerLimits
from scheduler_service.engine.executor_client import ExecutorInfo
from scheduler_service.engine.messages import ModelReady

log = logging.getLogger(__name__)


class ServedModel:
    """The first executor decides which model it is; those with another are refused."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.ready: ModelReady | None = None
        """What workers are told; None before any executor was reached."""

    def accept(self, address: str, info: ExecutorInfo, files: dict[str, bytes]) -> None:
        """ModelError if the executor at `address` has another model than those before, or says of
        itself what cannot be."""
        try:
            self.limits(info)
        except ValueError as error:
            raise ModelError(f"executor {address} cannot be used: {error}") from error
        if self.ready is None:
            self.ready = self._describe(info, files)
            log.info("serving %s", self.ready.name, extra={"fingerprint": self.ready.fingerprint})
        elif self.ready.fingerprint != info.model_fingerprint:
            raise ModelError(
                f"executor {address} holds {info.model_name} ({info.model_fingerprint[:12]}), but"
                f" {self.ready.name} ({self.ready.fingerprint[:12]}) is being served"
            )

    def _describe(self, info: ExecutorInfo, files: dict[str, bytes]) -> ModelReady:
        return ModelReady(
            name=self._config.served_model_name or info.model_name,
            fingerprint=info.model_fingerprint,
            files=files,
            max_model_len=self.limits(info).max_model_len,
            vocab_size=info.vocab_size,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            dtype=info.dtype,
            kv_cache_dtype=info.kv_cache_dtype,
        )

    def limits(self, info: ExecutorInfo) -> SchedulerLimits:
        """What the flags, the model and this executor's pool allow, taken together.

        The queue has no limit here: requests are counted where they come in, not where they move.
        """
        config = self._config
        max_model_len = min(info.max_model_len, info.num_blocks * info.block_size)
        if config.max_model_len is not None:
            max_model_len = min(max_model_len, config.max_model_len)
        return SchedulerLimits(
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            max_num_seqs=min(config.max_num_seqs, max(1, info.max_rows // ROWS_PER_SEQUENCE)),
            max_num_batched_tokens=min(config.max_num_batched_tokens, info.max_num_batched_tokens),
            max_model_len=max_model_len,
            depth=config.run_ahead_depth,
            max_decode_stall=config.max_decode_stall,
            enable_prefix_caching=config.enable_prefix_caching,
            vocab_size=info.vocab_size,
        )

    def new_core(self, info: ExecutorInfo) -> Scheduler:
        return Scheduler(self.limits(info), POLICIES[self._config.scheduling_policy]())
