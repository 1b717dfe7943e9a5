from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOW = """
import sys

sys.path.append(sys.argv[1])
from common.version import VERSION

print(VERSION)
"""


def shown(folder: Path) -> str:
    """Without the site's packages, where a release might be installed."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SHOW, str(folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_checkout_has_its_own_release() -> None:
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert shown(ROOT) == f"{release}+source"


def test_packages_that_were_copied_somewhere_run_without_one(tmp_path: Path) -> None:
    package = tmp_path / "common"
    package.mkdir()
    for name in ("__init__.py", "version.py"):
        (package / name).write_bytes((ROOT / "common" / name).read_bytes())
    assert shown(tmp_path) == "0+source"
