from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from executor_service.config import ExecutorConfig
from executor_service.models.checkpoint import open_checkpoint
from executor_service.models.source import SMOLLM2_ALIAS, locate
from tests.bench.quality import EXACT, TEXTS, VARIANTS, Subject, compare, texts
from tests.support.native_library import native_library

DOCUMENT = Path(__file__).parents[2] / "docs" / "quality.md"
DIGEST = "7e2deb301c19ef0eb931c6ccd7ed3b24133f1b2f7957ad49fae68ce4fb6a013f"
NUM_TOKENS = 256


def test_the_texts_are_those_that_the_documents_figures_are_of() -> None:
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in TEXTS)).hexdigest()
    assert digest == DIGEST, "measure docs/quality.md anew"


def test_the_document_has_a_row_for_each_variant() -> None:
    table = DOCUMENT.read_text().split("| variant |")[1].split("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert rows == ["float32", *VARIANTS]


@pytest.mark.slow
def test_the_defaults_stay_near_the_same_files_float32() -> None:
    native_library()
    checkpoint = open_checkpoint(locate(SMOLLM2_ALIAS, None))
    pieces = texts(checkpoint, NUM_TOKENS)
    with torch.inference_mode():
        reference = Subject(checkpoint, EXACT, NUM_TOKENS)
        exact = [list(reference.distributions(tokens)) for tokens in pieces]
        subject = Subject(checkpoint, ExecutorConfig(), NUM_TOKENS)
        found = compare(subject, exact, pieces)
    assert subject.weights != "float32"
    assert 0 < found.kl < 0.02
