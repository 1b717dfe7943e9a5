"""The core is a function of its calls: the same seed gives the same plans in any process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.traffic import Driver

ROOT = Path(__file__).parents[2]


def plans_digest(seed: int, num_steps: int) -> str:
    """Of every plan of a run of the driver."""
    driver, digest = Driver(seed), hashlib.sha256()
    send = driver.world.wire.send

    def record(plan):  # type: ignore[no-untyped-def]
        for chunk in plan.chunks():
            fields = (chunk.spec.sequence_id, chunk.start, chunk.length, chunk.block_ids)
            digest.update(repr((fields, [s.sequence_id for s in chunk.samples])).encode())
        digest.update(repr((plan.step_id, plan.copy_sources, plan.copy_destinations)).encode())
        send(plan)

    driver.world.wire.send = record  # type: ignore[method-assign]
    driver.run(num_steps)
    return digest.hexdigest()


def test_plans_do_not_depend_on_the_process_or_its_hash_seed() -> None:
    code = "from tests.simulation.test_determinism import plans_digest; print(plans_digest(5, 150))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {plans_digest(5, 150) + "\n"}
