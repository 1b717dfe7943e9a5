"""`octavo simulate`: an experiment in memory management, without a model or a server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common.config import Parser
from octavo.experiments import fragmentation
from octavo.experiments.fragmentation import Allocation

MAX_MODEL_LEN = fragmentation.LONGEST


def main(argv: Sequence[str]) -> int:
    namespace = make_parser().parse_args(argv)
    EXPERIMENTS[namespace.experiment](namespace)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="octavo simulate",
        description="Run an experiment with the scheduler's own memory management.",
        allow_abbrev=False,
    )
    parser.add_argument("--experiment", choices=sorted(EXPERIMENTS), default="fragmentation")
    parser.add_argument("--num-requests", type=_positive, default=1000, metavar="N")
    parser.add_argument("--block-size", type=_positive, default=16, metavar="N")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="of the random lengths")
    return parser


def run_fragmentation(namespace: argparse.Namespace) -> None:
    lengths = fragmentation.random_lengths(namespace.num_requests, namespace.seed)
    block_size = namespace.block_size
    print(
        f"{len(lengths):,} requests of {fragmentation.SHORTEST} to {fragmentation.LONGEST} tokens"
        f" (seed {namespace.seed}), {sum(lengths):,} tokens in all"
    )
    reserved = fragmentation.reserved(lengths, MAX_MODEL_LEN)
    print(_line(f"reserving {MAX_MODEL_LEN} slots each", reserved))
    print(_line(f"paging in blocks of {block_size}", fragmentation.paged(lengths, block_size)))


def _line(how: str, allocation: Allocation) -> str:
    return f"  {how:<28} {allocation.num_slots:>12,} slots  {allocation.waste:6.1%} wasted"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


EXPERIMENTS = {"fragmentation": run_fragmentation}
