"""The committed answers, read back, and the rule for a difference from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.integration.reference.prompts import Kind

RECORDED = Path(__file__).with_name("smollm2_135m.json")
NUM_NEW_TOKENS = 64
NEAR_TIE = 1e-4
"""A first difference is forgiven only where the two best logits are closer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the reference said to one prompt."""

    name: str
    kind: Kind
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]
    """Best logit minus the second best, at each of token_ids."""

    def first(self, num_tokens: int) -> Answer:
        """The same answer with max_tokens so many."""
        return Answer(
            name=self.name,
            kind=self.kind,
            prompt_token_ids=self.prompt_token_ids,
            token_ids=self.token_ids[:num_tokens],
            gaps=self.gaps[:num_tokens],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    eos_token_ids: tuple[int, ...]
    answers: Mapping[str, Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first position where an answer is not the reference's."""

    name: str
    position: int
    expected: int | None
    """None: the reference had ended."""
    actual: int | None
    gap: float
    """The reference's there; infinite where it had ended."""

    @property
    def is_near_tie(self) -> bool:
        return self.gap < NEAR_TIE


def first_difference(answer: Answer, actual: Sequence[int]) -> Difference | None:
    expected = answer.token_ids
    for position in range(max(len(expected), len(actual))):
        wanted = expected[position] if position < len(expected) else None
        got = actual[position] if position < len(actual) else None
        if wanted != got:
            gap = answer.gaps[position] if wanted is not None and got is not None else float("inf")
            return Difference(
                name=answer.name, position=position, expected=wanted, actual=got, gap=gap
            )
    return None


def to_json(command: str, eos_token_ids: Sequence[int], answers: Sequence[Answer]) -> str:
    """One line for each answer, so that a change of one shows as one line."""
    opening = f'"generated_by":{json.dumps(command)},\n"eos_token_ids":{list(eos_token_ids)}'
    lines = ",\n".join(
        json.dumps(
            {
                "name": answer.name,
                "kind": answer.kind,
                "prompt_token_ids": answer.prompt_token_ids,
                "token_ids": answer.token_ids,
                "gaps": [float(f"{gap:.3g}") for gap in answer.gaps],
            },
            separators=(",", ":"),
        )
        for answer in answers
    )
    return f'{{\n{opening},\n"answers": [\n{lines}\n]\n}}\n'


def from_json(text: str) -> Recording:
    value = json.loads(text)
    answers = (
        Answer(
            name=entry["name"],
            kind=entry["kind"],
            prompt_token_ids=tuple(entry["prompt_token_ids"]),
            token_ids=tuple(entry["token_ids"]),
            gaps=tuple(entry["gaps"]),
        )
        for entry in value["answers"]
    )
    return Recording(
        eos_token_ids=tuple(value["eos_token_ids"]),
        answers={answer.name: answer for answer in answers},
    )


@cache
def recording() -> Recording:
    return from_json(RECORDED.read_text())
