"""Variables that look like ours and say nothing to anybody: most likely misspelt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

_PREFIX = "OCTAVO_"
_CLOSE, _VERY_CLOSE = 0.75, 0.85
"""difflib's ratio. The names of either service's own flags are less close to the other's."""


def told_of_unknown(known: Collection[str], environ: Mapping[str, str]) -> str | None:
    """One line on every OCTAVO_* variable that is set and not `known`; None if there is none."""
    return _line({name: _nearest(name, known, _CLOSE) for name in _unknown(known, environ)})


def told_of_misspelt(known: Collection[str], environ: Mapping[str, str]) -> str | None:
    """The same of those alone that are close to a known one: the others may be meant for another
    service."""
    found = {name: _nearest(name, known, _VERY_CLOSE) for name in _unknown(known, environ)}
    return _line({name: near for name, near in found.items() if near})


def _unknown(known: Collection[str], environ: Mapping[str, str]) -> list[str]:
    """An empty variable counts as unset."""
    set_ones = (name for name, value in environ.items() if name.startswith(_PREFIX) and value)
    return sorted(set(set_ones) - set(known))


def _nearest(name: str, known: Collection[str], cutoff: float) -> str | None:
    """The prefix, which all have, makes nothing alike."""
    stems = [other.removeprefix(_PREFIX) for other in known]
    found = get_close_matches(name.removeprefix(_PREFIX), stems, n=1, cutoff=cutoff)
    return _PREFIX + found[0] if found else None


def _line(unknown: Mapping[str, str | None]) -> str | None:
    if not unknown:
        return None
    named = [f"{name} (did you mean {near}?)" if near else name for name, near in unknown.items()]
    return f"ignored, as no flag is called so: {', '.join(named)}"
