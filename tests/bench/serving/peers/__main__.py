"""`python -m tests.bench.serving.peers [--cases W1,W3] [--repeats N] [--only NAME,...]`"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from rich.console import Console

from tests.bench.records import write_records
from tests.bench.serving.peers import roster
from tests.bench.serving.peers.contest import Contest
from tests.bench.serving.peers.report import print_left_out, print_report
from tests.bench.serving.peers.roster import PeersFolder, chosen
from tests.bench.serving.peers.server_process import exit_at_sigterm
from tests.bench.serving.peers.standings import case_standings, records
from tests.bench.serving.workloads import WORKLOADS, wide_warm_up
from tests.integration.reference.hf_model import installed_gguf

MODEL = "smollm2-135m"


def main() -> int:
    arguments = make_parser().parse_args()
    exit_at_sigterm()
    torch.set_num_threads(arguments.threads)  # of the probe that tells how fast the machine is
    folder = PeersFolder(arguments.folder.resolve())
    ours = roster.ours(MODEL, folder)
    peers = chosen(roster.peers(folder, installed_gguf()), arguments.only)
    contest = Contest(
        contestants=[*ours, *peers],
        workloads=[WORKLOADS[name]() for name in arguments.cases.split(",")],
        warm_up=wide_warm_up(),
        threads=arguments.threads,
        log=Console(stderr=True, soft_wrap=True),
    )
    for number in range(arguments.repeats):
        contest.run_round(number)
    cases = case_standings(contest.entries, ours, peers)
    title = f"{MODEL}, {arguments.threads} threads, medians of {arguments.repeats} rounds"
    # Piped output would be cut to 80 columns.
    console = Console(width=max(140, Console().width))
    print_report(console, title, cases)
    print_left_out(console, contest.out)
    if arguments.json is not None and contest.entries:
        write_records(arguments.json, records(cases, contest.entries))
    return int(any(own.name in contest.out for own in ours))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.serving.peers",
        description="Octavo against llama.cpp, OpenVINO GenAI, vLLM and transformers.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--cases", default=",".join(WORKLOADS), metavar="W1,W2,...")
    parser.add_argument(
        "--only", default="", metavar="NAME,...", help="peers whose name begins so; default all"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument(
        "--folder", type=Path, default=Path(".venv-peers"), help="where the peers are installed"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
