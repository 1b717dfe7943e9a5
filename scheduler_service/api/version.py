"""Which release this is."""

from __future__ import annotations

from importlib import metadata


def _installed_version() -> str:
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:
        return "0+source"  # run from a checkout


VERSION = _installed_version()
