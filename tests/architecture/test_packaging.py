"""What an installation from pyproject.toml has: all that the product needs, and nothing else."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from executor_service.kernels.native import build

ROOT = Path(__file__).parents[2]
ROOMS = ("proto", "common", "scheduler_service", "executor_service", "octavo")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHIPPED = """
import json, sys
from setuptools import Distribution
made = Distribution()
made.parse_config_files()
made.include_package_data = False  # It is for what a manifest names, and there is none.
files = made.get_command_obj("build_py")
files.ensure_finalized()
shipped = [f"{folder}/{name}" for _, folder, _, names in files.data_files for name in names]
print(json.dumps(shipped))
"""


def distributions(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[<>=;\[ ]", line)[0]) for line in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(*rooms: str) -> list[set[str]]:
    """Whose each module may be that a room imports, at its head or later, and that is not ours."""
    modules: set[str] = set()
    for path in (path for room in rooms for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    owners = packages_distributions()
    return [set(map(normal, owners[name])) for name in modules - {*ROOMS} if name in owners]


def test_a_wheel_has_every_source_of_the_kernels() -> None:
    pytest.importorskip("setuptools")
    done = subprocess.run(
        [sys.executable, "-c", SHIPPED], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    shipped = {(ROOT / name).resolve() for name in json.loads(done.stdout.splitlines()[-1])}
    sources = {path for path in build.SOURCES.rglob("*") if path.is_file()}
    assert len(sources) > 40
    assert sources <= shipped


def test_the_product_asks_for_what_it_imports() -> None:
    needed = distributions(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    executor = distributions(extras["executor"])
    elsewhere = imported("proto", "common", "scheduler_service", "octavo")
    assert not [owners for owners in elsewhere if not owners & needed]
    here = imported("executor_service")
    allowed = needed | executor | distributions(extras["gpu"])
    assert not [owners for owners in here if not owners & allowed]
    assert executor <= set().union(*here), "an executor needs no more than it imports"
