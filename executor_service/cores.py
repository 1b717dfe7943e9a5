"""Which cores the compute threads of this process stay on.

Between two steps all but one of them sleep. One that is woken is put beside the thread that woke
it and waits there for a core, while the scheduler's processes have moved to the one it came from:
with two cores a decode of one sequence takes a third longer. OpenMP, to which all compute threads
belong, can keep each on a core of its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, MutableMapping


def usable_cores() -> list[int]:
    """Of the calling thread; once OpenMP is there a compute thread has but its own."""
    return sorted(os.sched_getaffinity(0))


def compute_threads(configured: int | None) -> int:
    """As --threads says; else one for each core that the calling thread may use."""
    return configured or len(usable_cores())


def keep_threads_apart(
    num_threads: int, cores: Collection[int], environ: MutableMapping[str, str]
) -> None:
    """To be called before torch is imported. What the environment says itself stays.

    Nothing is done unless the threads take all cores: with fewer, others may take the rest, and
    which those are is for the system to say.
    """
    if num_threads < 2 or num_threads != len(cores) or "OMP_PROC_BIND" in environ:
        return
    # Two processes that do this do not both begin at the first core.
    first = os.getpid() % num_threads
    order = sorted(cores)
    environ["OMP_PROC_BIND"] = "true"
    environ.setdefault(
        "OMP_PLACES", ",".join(f"{{{core}}}" for core in order[first:] + order[:first])
    )
