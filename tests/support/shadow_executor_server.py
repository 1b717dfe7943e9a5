"""An executor process without a model: `python -m tests.support.shadow_executor_server --port 0`.

It speaks the real protocol through the real service and takes the real flags, but its steps run on
shadow KV, so a wrong plan ends the process with a `ShadowError` in its log. Further flags script
its speed and its death.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from common.config import option, parse
from executor_service import app
from executor_service.config import ExecutorConfig
from tests.support.scripted_runner import ScriptedRunner
from tests.support.shadow_executor import ShadowExecutor
from tests.support.shadow_model import ShadowModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowConfig(ExecutorConfig):
    model: str = option("shadow", help="name that the executor gives its model")
    vocab_size: int = option(1000, help="token ids, at least 259")
    eos_token_id: int | None = option(None, help="the end-of-text id; none: it never ends")
    eos_period: int = option(0, help="one sampled token in so many is EOS; 0: none is")
    latency_ms: float = option(0.0, help="time of each step")
    latency_per_token_ms: float = option(0.0, help="further time per token computed")
    load_ms: float = option(0.0, help="time that loading takes")
    die_after_steps: int | None = option(None, help="the device fails after so many steps")
    hang_after_steps: int | None = option(None, help="the device hangs after so many steps")


def load(config: ShadowConfig, progress: Callable[[int, int, str], None]) -> ScriptedRunner:
    model = ShadowModel(
        vocab_size=config.vocab_size,
        eos_token_id=config.eos_token_id,
        eos_period=config.eos_period,
    )
    num_parts = 10
    for done in range(num_parts + 1):
        progress(done, num_parts, "shadow weights")
        threading.Event().wait(config.load_ms / 1000 / num_parts)
    return ScriptedRunner(
        ShadowExecutor(config.num_blocks or 256, config.block_size, model=model),
        model_name=config.served_model_name or config.model,
        max_rows=2 * config.max_num_seqs,
        max_model_len=config.max_model_len or 4096,
        max_num_batched_tokens=config.max_num_batched_tokens,
        latency_s=config.latency_ms / 1000,
        latency_per_token_s=config.latency_per_token_ms / 1000,
        die_after_steps=config.die_after_steps,
        hang_after_steps=config.hang_after_steps,
    )


def main() -> int:
    config = parse(ShadowConfig, sys.argv[1:], prog="shadow executor")
    return app.run_with(config, partial(load, config))


if __name__ == "__main__":
    sys.exit(main())
