from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [linter, "--no-cache"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_scheduler_leaves_torch_unimported() -> None:
    """transformers would pull torch in; a scheduler machine has neither."""
    program = (
        "import sys; import scheduler_service.app;"
        "print([name for name in ('torch', 'transformers', 'triton') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_redis_is_imported_by_one_file_at_most() -> None:
    importers = [
        path
        for room in ("common", "scheduler_service", "executor_service", "octavo")
        for path in (ROOT / room).rglob("*.py")
        if any(
            line.lstrip().startswith(("import redis", "from redis"))
            for line in path.read_text().splitlines()
        )
    ]
    assert len(importers) <= 1
