"""Which release this is."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path


def _version() -> str:
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:
        return _source_version(Path(__file__).parents[1] / "pyproject.toml")


def _source_version(pyproject: Path) -> str:
    """Of a checkout that is run without being installed."""
    try:
        release = tomllib.loads(pyproject.read_text())["project"]["version"]
    except FileNotFoundError:
        release = "0"  # the packages alone were copied somewhere
    return f"{release}+source"


VERSION = _version()
