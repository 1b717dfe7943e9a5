"""The sampling flags that `generate` and `chat` share."""

from __future__ import annotations

import argparse
from typing import cast

from octavo.types import GenerateOptions

_FLAGS = (
    ("max_tokens", int, "most tokens of the answer"),
    ("temperature", float, "0: greedy"),
    ("top_k", int, "sample among the k most likely tokens; 0: all"),
    ("top_p", float, "sample among the likeliest tokens that together have this probability"),
    ("min_p", float, "drop tokens below this share of the likeliest one's probability"),
    ("repetition_penalty", float, "above 1: tokens seen before become less likely"),
    ("presence_penalty", float, "taken off the logit of a token that was output"),
    ("frequency_penalty", float, "the same, for each time it was output"),
    ("seed", int, "the same seed gives the same answer"),
    ("min_tokens", int, "no end before so many tokens"),
)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling (left out: the model's own defaults)")
    for name, kind, text in _FLAGS:
        flag = "--" + name.replace("_", "-")
        metavar = "N" if kind is int else "X"
        group.add_argument(flag, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=text)
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        default=argparse.SUPPRESS,
        help="end before this text; may be given several times",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", default=argparse.SUPPRESS, help="go on after an end"
    )


def sampling_options(namespace: argparse.Namespace) -> GenerateOptions:
    """The flags that were given, and no others."""
    names = [*(name for name, _, _ in _FLAGS), "stop", "ignore_eos"]
    given = {name: getattr(namespace, name) for name in names if hasattr(namespace, name)}
    return cast("GenerateOptions", given)
