"""`python -m tests.bench.serving [--quick] [--json FILE]`"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from tests.bench.records import write_records
from tests.bench.serving import octavo_side
from tests.bench.serving.noise import NoiseWatch
from tests.bench.serving.octavo_side import OctavoSide
from tests.bench.serving.report import print_report
from tests.bench.serving.static_batches import batch_sizes
from tests.bench.serving.summary import Pair, Sample, records
from tests.bench.serving.timeline import Outcome, measure
from tests.bench.serving.transformers_side import TransformersSide
from tests.bench.serving.workloads import WORKLOADS, Workload, warm_up
from tests.integration.reference.hf_model import installed_gguf, load_float32

MODEL = "smollm2-135m"


def main() -> int:
    arguments = make_parser().parse_args()
    num_rounds = arguments.rounds or (1 if arguments.quick else 3)
    workloads = [WORKLOADS[name]() for name in arguments.cases.split(",")]
    log = Console(stderr=True, soft_wrap=True)
    torch.set_num_threads(arguments.threads)
    peer = TransformersSide(load_float32(installed_gguf()))
    with octavo_side.started(MODEL, arguments.threads) as ours:
        ours.run(warm_up())
        peer.run(warm_up(), 4)
        rounds = Rounds(ours, peer, log)
        for number in range(num_rounds):
            for workload in workloads:
                rounds.take(workload, number, tries_sizes=not arguments.quick)
    title = (
        f"{MODEL}, float32, {arguments.threads} threads, medians of {num_rounds} rounds;"
        f" static batches of {', '.join(f'{k} {v}' for k, v in rounds.sizes.items())}"
    )
    # Piped output would be cut to 80 columns.
    print_report(Console(width=max(100, Console().width)), title, rounds.pairs)
    if arguments.json is not None:
        write_records(arguments.json, records(rounds.pairs))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.serving",
        description="Octavo over HTTP against transformers generate() in static batches.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--quick", action="store_true", help="one round, largest batches: about 3 minutes"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="default 3; 1 with --quick")
    parser.add_argument("--cases", default=",".join(WORKLOADS), metavar="W1,W2,...")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    return parser


class Rounds:
    """Takes samples of both sides in turn."""

    def __init__(self, ours: OctavoSide, peer: TransformersSide, log: Console) -> None:
        self._ours = ours
        self._peer = peer
        self._log = log
        self.pairs: list[Pair] = []
        self.sizes: dict[str, int] = {}
        """Best batch size of the peer, by workload."""

    def take(self, workload: Workload, number: int, *, tries_sizes: bool) -> None:
        """Who goes first changes from round to round."""
        if workload.name not in self.sizes:
            self.sizes[workload.name] = workload.concurrency
            if tries_sizes and workload.interruption is None:
                self.sizes[workload.name] = self._best_size(workload)
        size = self.sizes[workload.name]

        def run_ours() -> Sample:
            return self._sample(f"{workload.name} octavo", lambda: self._ours.run(workload))

        def run_peer() -> Sample:
            return self._sample(
                f"{workload.name} transformers", lambda: self._peer.run(workload, size)
            )

        if number % 2 == 0:
            ours, peers = run_ours(), run_peer()
        else:
            peers, ours = run_peer(), run_ours()
        self.pairs.append(Pair(case=workload.name, ours=ours, peers=peers))

    def _best_size(self, workload: Workload) -> int:
        rates = {
            size: self._sample(
                f"{workload.name} transformers, batches of {size}",
                lambda size=size: self._peer.run(workload, size),  # type: ignore[misc]
            ).figures["output_rate"]
            for size in batch_sizes(workload.concurrency)
        }
        return max(rates, key=lambda size: rates[size])

    def _sample(self, what: str, run: Callable[[], Outcome]) -> Sample:
        watch = NoiseWatch()
        outcome = run()
        noise = watch.stop()
        figures = measure(outcome)
        self._log.print(
            f"{what}: {figures['output_rate']:.1f} tokens/s"
            f" (others {noise.foreign:.0%} of the machine, run delay {noise.run_delay:.0%},"
            f" sgemm {noise.probe_gflops:.0f} GFLOP/s)",
            highlight=False,
        )
        return Sample(figures=figures, noise=noise, outcome=outcome)


if __name__ == "__main__":
    sys.exit(main())
