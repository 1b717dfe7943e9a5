"""`python -m tests.bench.serving.peers.first_start NAME --folder FOLDER`: does it work?

Starts the peers whose names begin so and has each answer the warm-up. What a server does at its
first start alone, vLLM's compilation of minutes above all, is done then and not in a benchmark.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.bench.serving.peers import roster
from tests.bench.serving.peers.contest import Contest
from tests.bench.serving.peers.contestant import Contestant
from tests.bench.serving.peers.roster import PeersFolder, chosen
from tests.bench.serving.peers.server_process import exit_at_sigterm
from tests.bench.serving.workloads import wide_warm_up
from tests.integration.reference.hf_model import installed_gguf


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.serving.peers.first_start")
    parser.add_argument("name", help="peers whose name begins so")
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    exit_at_sigterm()
    everybody = roster.peers(PeersFolder(arguments.folder.resolve()), installed_gguf())
    return start_each(chosen(everybody, arguments.name), Console(stderr=True, soft_wrap=True))


def start_each(peers: Sequence[Contestant], log: Console) -> int:
    """An exit status: 1 if there is none or one of them fails; the log says why."""
    if not peers:
        log.print("no peer has such a name")
        return 1
    contest = Contest(
        contestants=peers,
        workloads=[],
        warm_up=wide_warm_up(),
        threads=len(os.sched_getaffinity(0)),
        log=log,
    )
    contest.run_round(0)
    return int(bool(contest.out))


if __name__ == "__main__":
    sys.exit(main())
