"""The demo model from its GGUF file against transformers' own reading of that file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from executor_service.models.checkpoint import open_checkpoint
from executor_service.models.source import SMOLLM2_ALIAS, locate
from tests.support.paged_model import WAYS, Load

TEXT = (
    "<|im_start|>user\nWrite a haiku about the sea; then count from 1 to 10.<|im_end|>\n"
    "<|im_start|>assistant\nWaves: 海, море, mar. def f(x): return x + 1\n"
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_logits_equal_transformers_on_the_same_file(way: Load) -> None:
    path = locate(SMOLLM2_ALIAS, None)
    checkpoint = open_checkpoint(path)
    token_ids = Tokenizer.from_str(checkpoint.files["tokenizer.json"].decode()).encode(TEXT).ids
    paged = way(path, max_len=128)
    model = _by_transformers(path)
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0]
    found = paged.whole(token_ids)
    assert (found - expected).abs().max() < 2e-4
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    parts = [0, 1, 17, 40, len(token_ids)]
    chunks = [paged.step([(0, a, token_ids[a:b])])[0] for a, b in pairwise(parts)]
    assert torch.equal(torch.cat(chunks), found)


def _by_transformers(path: Path) -> Any:
    """What from_pretrained(gguf_file=...) does, without its need for the accelerate package."""
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=shape, torch_dtype=torch.float32
    )["tensors"]
    return type(shape).from_pretrained(None, config=config, state_dict=tensors, dtype=torch.float32)
