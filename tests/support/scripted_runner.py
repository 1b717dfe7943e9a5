"""A StepRunner over the shadow executor, which a test can hold, slow down, break or let die."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from common.plan import StepPlan, StepResult
from tests.support.shadow_executor import DeviceDiedError, ShadowExecutor
from tests.support.tiny_tokenizer import model_files


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedSpec:
    fingerprint: str
    model_name: str = "shadow"
    block_size: int = 16
    num_blocks: int = 256
    max_rows: int = 512
    max_model_len: int = 4096
    max_num_batched_tokens: int = 2048
    vocab_size: int = 1000
    kv_bytes_per_token: int = 24
    dtype: str = "float32"
    kv_cache_dtype: str = "float32"
    device: str = "shadow"
    weights_bytes: int = 1000
    kv_bytes: int = 98_304


class ScriptedRunner:
    """Executes plans for true on shadow KV.

    `gate` is open; while a test has it closed, a step waits in it after `started` was set.
    """

    def __init__(
        self,
        shadow: ShadowExecutor,
        *,
        model_name: str = "shadow",
        max_rows: int = 512,
        max_model_len: int = 4096,
        max_num_batched_tokens: int = 2048,
        latency_s: float = 0.0,
        latency_per_token_s: float = 0.0,
        die_after_steps: int | None = None,
        hang_after_steps: int | None = None,
    ) -> None:
        self.shadow = shadow
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.plans: list[StepPlan] = []
        self.num_forgets = 0
        self._latency_s = latency_s
        self._latency_per_token_s = latency_per_token_s
        self._die_after_steps = die_after_steps
        self._hang_after_steps = hang_after_steps
        self._files = model_files(shadow.model.vocab_size, shadow.model.eos_token_id)
        digest = hashlib.sha256(b"".join(self._files.values()))
        self._spec = ScriptedSpec(
            fingerprint=digest.hexdigest(),
            model_name=model_name,
            block_size=shadow.block_size,
            num_blocks=shadow.num_blocks,
            max_rows=max_rows,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            vocab_size=shadow.model.vocab_size,
            kv_bytes=24 * shadow.block_size * shadow.num_blocks,
        )

    @property
    def spec(self) -> ScriptedSpec:
        return self._spec

    @property
    def model_files(self) -> Mapping[str, bytes]:
        return self._files

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self.started.set()
        self.gate.wait()
        if self._hang_after_steps is not None and self.shadow.num_steps >= self._hang_after_steps:
            threading.Event().wait()
        if self._die_after_steps is not None and self.shadow.num_steps >= self._die_after_steps:
            raise DeviceDiedError(f"scripted, at step {plan.step_id}")
        time.sleep(self._latency_s + self._latency_per_token_s * plan.num_tokens)
        return self.shadow.execute(plan)

    def forget_samples(self) -> None:
        self.num_forgets += 1
        self.shadow.forget_samples()
