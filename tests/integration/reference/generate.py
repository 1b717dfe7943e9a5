"""Asks HF transformers for the reference answers and writes them beside this file.

Minutes on two cores: `PYTHONPATH=. .venv/bin/python -m tests.integration.reference.generate`
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

from tests.integration.reference.hf_model import ReferenceModel, installed_gguf
from tests.integration.reference.prompts import PROMPTS, Prompt
from tests.integration.reference.recorded import NUM_NEW_TOKENS, RECORDED, Answer, to_json

log = logging.getLogger(__name__)


def answer(model: ReferenceModel, prompt: Prompt) -> Answer:
    token_ids = model.encode(prompt)
    stop_at = model.eos_token_ids if prompt.kind == "chat" else ()
    said = model.continue_greedily(token_ids, max_tokens=NUM_NEW_TOKENS, stop_at=stop_at)
    log.info("%s: %d tokens, smallest gap %.3g", prompt.name, len(token_ids), min(said.gaps))
    return Answer(
        name=prompt.name,
        kind=prompt.kind,
        prompt_token_ids=tuple(token_ids),
        token_ids=tuple(said.token_ids),
        gaps=tuple(said.gaps),
    )


def answers(model: ReferenceModel, prompts: Iterable[Prompt] = PROMPTS) -> list[Answer]:
    return [answer(model, prompt) for prompt in prompts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, default=None, help="default: the installed one")
    parser.add_argument("--out", type=Path, default=RECORDED)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    gguf = args.gguf or installed_gguf()
    model = ReferenceModel(gguf)
    command = (
        f"python -m tests.integration.reference.generate  # {gguf.name}, "
        f"transformers {transformers.__version__}, torch {torch.__version__}"
    )
    args.out.write_text(to_json(command, model.eos_token_ids, answers(model)), encoding="utf-8")


if __name__ == "__main__":
    main()
