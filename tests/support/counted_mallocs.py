"""`python -m tests.support.counted_mallocs`, with counted_mallocs.c compiled and preloaded: prints
how often native code asks the heap for memory during a large step and large draws, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from array import array
from collections import Counter
from typing import Any

import torch

from common.plan import SamplingParams
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.library import Library, load
from executor_service.kernels.native.sampling import TokenDraws
from executor_service.runner.native_sampler import NativeSampler
from executor_service.runner.sampler import Logits, SampleTask
from tests.support.paged_model import NativePagedModel
from tests.support.plans import make_spec
from tests.support.random_llama import SHAPES, random_checkpoint

_NUM_SEQUENCES = 64
_VOCABULARY = 5003


class CountedCalls:
    """`Library.call` that notes what each function asked of the heap."""

    def __init__(self, call: Any) -> None:
        self.mallocs: Counter[str] = Counter()
        self._call = call
        self._marks = ctypes.CDLL(None)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._call, name)

        def counted(*arguments: Any) -> Any:
            self._marks.begin_counting()
            result = function(*arguments)
            self.mallocs[name] += self._marks.end_counting()
            return result

        return counted


def run_steps(library: Library) -> None:
    """Sequences that are of all lengths, so that each costs something else."""
    shape = SHAPES["tiny"]
    backend = NativeBackend(library, num_threads=2)
    model = NativePagedModel(
        random_checkpoint(shape, 1, torch.device("cpu")),
        backend,
        num_sequences=_NUM_SEQUENCES,
        max_len=shape.max_positions,
    )
    backend.fill_blocks(model.pool.storage, torch.arange(model.pool.shape.num_blocks), 0.0)
    model.step([(i, 3 * i, [i]) for i in range(_NUM_SEQUENCES)])


def draw_tokens(library: Library) -> None:
    """Of logits that are all the same: the nucleus takes them by their ids."""
    sampler = NativeSampler(TokenDraws(library, _VOCABULARY, 2))
    spec = make_spec(1, 1, params=SamplingParams(top_p=0.9, seed=3))
    tasks = [
        SampleTask(spec=spec, row=row, position=1, history=array("i"))
        for row in range(_NUM_SEQUENCES)
    ]
    sampler(Logits(torch.zeros(_NUM_SEQUENCES, _VOCABULARY)), tasks)


def main() -> None:
    library = load()
    for work in (run_steps, draw_tokens):
        work(library)  # Threads are made, once.
    calls = CountedCalls(library.call)
    for work in (run_steps, draw_tokens):
        work(Library(library.level, calls))
    control = CountedCalls(ctypes.CDLL(None))
    control.malloc(1)
    noted = dict(calls.mallocs)  # where a function that was not called is an error
    found = {name: noted[name] for name in ("oct_step", "oct_sample")}
    sys.stdout.write(json.dumps(found | {"malloc": control.mallocs["malloc"]}))


if __name__ == "__main__":
    main()
