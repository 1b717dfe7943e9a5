"""What each kind of KV pool costs in quality at a model's full context: `python -m
tests.bench.kv_quality`.

The model computes in float32; its keys and values pass through `reference.kept_kv` when they are
written, as the pool of each kind would keep them. One long text, documentation from Python's own
`pydoc_data/topics.py` with a few facts strewn in, is read whole. Prints a markdown table.

NLL: mean negative log likelihood of the last tokens, in nats: those with most context before them.
KL: mean divergence from the distribution over a float32 pool. Top-1: how often the most likely
token is the same. Needles: how many of the facts are told when asked for at the end, every token of
the answer the most likely one; digits: of how many tokens of the answers that is so; and the mean
NLL of those, which is 2.3 for a guessed digit.
"""

from __future__ import annotations

import argparse
import math
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from common.kv_size import kv_element_bytes
from executor_service.kernels import reference
from executor_service.kernels.backend import KVShape, StepLayout
from executor_service.kernels.cpu import CpuBackend
from executor_service.kernels.kv_kind import KVKind
from executor_service.models.checkpoint import Checkpoint, open_checkpoint
from executor_service.models.llama import LlamaModel
from executor_service.models.source import locate

TEXT = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
_ROWS = 64
"""Logits at a time: large temporaries cost more than what is computed in them."""
_ROOM = 48
"""Tokens kept free for a question and its answer."""
_COLOURS = ("red", "green", "blue", "white", "black", "yellow", "brown", "orange")


class KeptBackend(CpuBackend):
    """The CPU's arithmetic over the KV of one sequence, as a pool of some kind keeps it."""

    def __init__(self, shape: KVShape) -> None:
        super().__init__()
        self.kind = KVKind.FLOAT32
        """May change between two readings."""
        num_slots = shape.num_blocks * shape.block_size
        self._kept = torch.zeros(shape.num_layers, 2, shape.num_kv_heads, num_slots, shape.head_dim)

    def begin_step(self, layout: StepLayout, kv: Any) -> Any:
        start, length = int(layout.starts[0]), int(layout.lengths[0])
        if start == 0:
            return 0, length, None
        hidden = torch.arange(start + length) > torch.arange(start, start + length).unsqueeze(1)
        return start, start + length, hidden.float() * torch.finfo(torch.float32).min

    def write_kv(self, kv: Any, layer: int, k: Tensor, v: Tensor, step: Any) -> None:
        start, end, _ = step
        both = torch.stack((k, v)).transpose(1, 2)
        self._kept[layer, :, :, start:end] = reference.kept_kv(both, self.kind)

    def attention(self, q: Tensor, kv: Any, layer: int, scale: float, step: Any) -> Tensor:
        _, end, mask = step
        kept = self._kept[layer, :, :, :end]
        group = q.shape[1] // kept.shape[1]
        k, v = kept.repeat_interleave(group, dim=1).unsqueeze(1)
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
        )
        return out[0].transpose(0, 1).contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needle:
    question: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Haystack:
    tokens: list[int]
    needles: list[Needle]


def haystack(tokenizer: Tokenizer, length: int) -> Haystack:
    """`length` tokens of TEXT with the facts at equal distances; numbers from a fixed seed."""
    numbers = random.Random(42)
    facts = [
        (f"\n\nThe secret number of the {colour} house is", f" {numbers.randrange(10000, 99999)}")
        for colour in _COLOURS
    ]
    needles = [
        Needle(question=tokenizer.encode(key).ids, answer=tokenizer.encode(value).ids)
        for key, value in facts
    ]
    told = [tokenizer.encode(f"{key}{value}.\n\n").ids for key, value in facts]
    plain = tokenizer.encode(TEXT.read_text()[: length * 8]).ids
    plain = plain[: length - sum(map(len, told))]
    step = len(plain) // len(told)
    tokens: list[int] = []
    for index, fact in enumerate(told):
        tokens += plain[index * step : (index + 1) * step] + fact
    tokens += plain[len(told) * step :]
    assert len(tokens) == length, "the text is too short"
    return Haystack(tokens=tokens, needles=needles)


class Reader:
    """The model over a pool of the backend's kind."""

    def __init__(self, checkpoint: Checkpoint, max_len: int) -> None:
        config = checkpoint.config
        self.head_dim = config.head_dim
        self.backend = KeptBackend(config.kv_shape(num_blocks=1, block_size=max_len))
        self.model = LlamaModel(
            self.backend, config, checkpoint.weights, max_len, lambda done, total, what: None
        )

    def read(self, tokens: list[int], start: int) -> Tensor:
        """Hidden states of tokens from position `start` on."""
        layout = StepLayout(
            starts=torch.tensor([start], dtype=torch.int32),
            lengths=torch.tensor([len(tokens)], dtype=torch.int32),
            block_tables=torch.zeros(1, 1, dtype=torch.int32),
            slot_mapping=torch.arange(start, start + len(tokens)),
        )
        positions = torch.arange(start, start + len(tokens))
        kv: Any = None
        return self.model.forward(torch.tensor(tokens), positions, layout, kv)


def compare(
    model: LlamaModel, found: Tensor, exact: Tensor, following: list[int]
) -> tuple[float, float, float]:
    """Mean NLL, KL and agreement of hidden states whose next tokens are `following`."""
    sums = torch.zeros(3, dtype=torch.float64)
    for first in range(0, len(following), _ROWS):
        target = torch.tensor(following[first : first + _ROWS])
        rows = slice(first, first + len(target))
        logs = model.logits(found[rows]).log_softmax(1)
        exact_logs = model.logits(exact[rows]).log_softmax(1)
        sums[0] -= logs[range(len(target)), target].double().sum()
        sums[1] += (exact_logs.exp() * (exact_logs - logs)).double().sum()
        sums[2] += (logs.argmax(1) == exact_logs.argmax(1)).sum()
    nll, kl, agreement = (sums / len(following)).tolist()
    return nll, kl, agreement


def ask(reader: Reader, start: int, needle: Needle) -> tuple[int, float]:
    """How many tokens of the answer would be given after those before them, and its mean NLL."""
    states = reader.read(needle.question + needle.answer, start)
    first = len(needle.question) - 1
    logs = reader.model.logits(states[first:-1]).log_softmax(1)
    answer = torch.tensor(needle.answer)
    told = int((logs.argmax(1) == answer).sum())
    return told, -logs[range(len(answer)), answer].mean().item()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What was told of all needles."""

    num_needles: int
    num_told: int
    num_digits: int
    num_right_digits: int
    nll: float

    def cells(self) -> str:
        return (
            f"{self.num_told} of {self.num_needles} |"
            f" {self.num_right_digits} of {self.num_digits} | {self.nll:.4f}"
        )


def ask_all(reader: Reader, stack: Haystack) -> Answers:
    """Each question follows the text that was read, as if no other had been asked."""
    answers = [ask(reader, len(stack.tokens), needle) for needle in stack.needles]
    lengths = [len(needle.answer) for needle in stack.needles]
    return Answers(
        num_needles=len(answers),
        num_told=sum(right == n for (right, _), n in zip(answers, lengths, strict=True)),
        num_digits=sum(lengths),
        num_right_digits=sum(right for right, _ in answers),
        nll=sum(loss for _, loss in answers) / len(answers),
    )


def parsed_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--context", type=int, help="tokens of text and question; the model's")
    parser.add_argument("--counted", type=int, default=2560, help="tokens that NLL is the mean of")
    parser.add_argument(
        "--kinds",
        nargs="*",
        default=[kind.value for kind in KVKind],
        help="the first is what others are compared with",
    )
    return parser.parse_args()


def print_table(reader: Reader, stack: Haystack, counted: int, kinds: list[KVKind]) -> None:
    """A line for each kind as soon as it is measured."""
    print("| KV | bits an element | NLL | perplexity | KL | top-1 | needles | digits | NLL |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    exact: Tensor | None = None
    for kind in kinds:
        reader.backend.kind = kind
        found = reader.read(stack.tokens, 0)[-counted - 1 : -1]
        exact = found if exact is None else exact
        nll, kl, agreement = compare(reader.model, found, exact, stack.tokens[-counted:])
        bits = 8 * kv_element_bytes(kind.value, reader.head_dim)
        print(
            f"| {kind.value} | {bits:g} | {nll:.4f} | {math.exp(nll):.3f} | {kl:.2g} |"
            f" {agreement:.4f} | {ask_all(reader, stack).cells()} |",
            flush=True,
        )


def main() -> None:
    flags = parsed_flags()
    checkpoint = open_checkpoint(locate(flags.model, None))
    context = flags.context or checkpoint.config.max_position_embeddings
    tokenizer = Tokenizer.from_str(checkpoint.files["tokenizer.json"].decode())
    stack = haystack(tokenizer, context - _ROOM)
    counted = min(flags.counted, len(stack.tokens) - 1)
    print(
        f"{len(stack.tokens)} tokens of {TEXT.name}, the last {counted} counted; "
        f"{len(stack.needles)} needles, asked for at {context} tokens\n"
    )
    kinds = [KVKind(name) for name in flags.kinds]
    print_table(Reader(checkpoint, context), stack, counted, kinds)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
