"""Llama-shaped models of random weights, made from a seed where they are to run: no files."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from executor_service.kernels.weight_rows import RowsHeader
from executor_service.models.checkpoint import Checkpoint
from executor_service.models.config import from_hf

_NORM_SPREAD = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    rope_theta: float
    max_positions: int
    head_dim: int = 64

    def hf(self) -> dict[str, Any]:
        """As config.json has it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": None,
        }


SHAPES = {
    shape.name: shape
    for shape in (
        LlamaShape(
            name="tiny",
            hidden_size=64,
            intermediate_size=96,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            vocab_size=320,
            rope_theta=10_000.0,
            max_positions=256,
            head_dim=16,
        ),
        LlamaShape(
            name="135M",
            hidden_size=576,
            intermediate_size=1536,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            vocab_size=49_152,
            rope_theta=100_000.0,
            max_positions=8192,
        ),
        LlamaShape(
            name="1B",
            hidden_size=2048,
            intermediate_size=8192,
            num_layers=16,
            num_heads=32,
            num_kv_heads=8,
            vocab_size=128_256,
            rope_theta=500_000.0,
            max_positions=8192,
        ),
    )
}


class RandomWeights:
    """`WeightSource`. A tensor depends on its name and the seed alone."""

    def __init__(self, shape: LlamaShape, seed: int, device: torch.device) -> None:
        self._shape = shape
        self._seed = seed
        self._device = device

    def __contains__(self, name: str) -> bool:
        return not name.endswith(".bias")

    def header(self, name: str) -> RowsHeader:
        *rows, in_features = self._size_of(name)
        return RowsHeader(
            out_features=math.prod(rows), in_features=in_features, block_kind=None, stored_as=None
        )

    def blocks(self, name: str) -> None:
        return None

    def tensor(self, name: str) -> Tensor:
        size = self._size_of(name)
        generator = torch.Generator(self._device)
        generator.manual_seed(self._seed * 0x10001 + zlib.crc32(name.encode()))
        values = torch.randn(size, generator=generator, device=self._device)
        if len(size) == 1:
            return 1 + _NORM_SPREAD * values
        # Rows of a projection keep the size of what comes in; logits differ by units.
        scale = 2.0 if "embed" in name else 1.0
        return values * (scale / math.sqrt(size[1]))

    def _size_of(self, name: str) -> tuple[int, ...]:
        shape, part = self._shape, name.removesuffix(".weight").rpartition(".")[2]
        hidden, wide = shape.hidden_size, shape.intermediate_size
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        sizes: dict[str, tuple[int, ...]] = {
            "embed_tokens": (shape.vocab_size, hidden),
            "q_proj": (queries, hidden),
            "k_proj": (keys, hidden),
            "v_proj": (keys, hidden),
            "o_proj": (hidden, queries),
            "gate_proj": (wide, hidden),
            "up_proj": (wide, hidden),
            "down_proj": (hidden, wide),
        }
        return sizes.get(part, (hidden,))


def random_checkpoint(shape: LlamaShape, seed: int, device: torch.device) -> Checkpoint:
    hf = shape.hf()
    return Checkpoint(
        config=from_hf(hf),
        weights=RandomWeights(shape, seed, device),
        files={"config.json": json.dumps(hf).encode()},
        fingerprint=f"random {shape.name} {seed}",
    )


@torch.no_grad()
def transformers_model(
    shape: LlamaShape, seed: int, device: torch.device, dtype: torch.dtype, attention: str
) -> Any:
    """The same weights as HF's class; `attention` is its attn_implementation."""
    from transformers import LlamaConfig, LlamaForCausalLM

    fields = {key: value for key, value in shape.hf().items() if key != "architectures"}
    config = LlamaConfig(**fields)
    config._attn_implementation = attention
    with torch.device(device):
        model = LlamaForCausalLM(config).to(dtype).eval()
    weights = RandomWeights(shape, seed, device)
    for name, parameter in model.named_parameters():
        parameter.copy_(weights.tensor(name))
    return model
