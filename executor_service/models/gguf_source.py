"""Weights of a GGUF file under HF's names, dequantized or in the blocks they are stored in."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.errors import ModelError
from executor_service.kernels.weight_rows import Blocks, RowsHeader, WeightKind
from executor_service.models.dequantize import (
    BLOCK_TYPES,
    GGUFType,
    block_of,
    dequantize,
    type_name,
)
from executor_service.models.gguf_file import GGUFFile, GGUFTensor

_GLOBAL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_KINDS = {kind: WeightKind[kind.name] for kind in BLOCK_TYPES}
_ROPE_DIVISORS = "rope_freqs.weight"


class GGUFSource:
    """`WeightSource` over one file.

    The architecture "llama" stores the rows of q and k for rotary pairs (2i, 2i + 1); HF pairs
    (i, i + head_dim / 2), so those rows are put back. `heads` gives the number of heads of each.
    """

    def __init__(self, file: GGUFFile, heads: dict[str, int]) -> None:
        self._file = file
        self._heads = heads if file.fields.get("general.architecture") == "llama" else {}

    def __contains__(self, name: str) -> bool:
        return gguf_name(name) in self._file.tensors

    def tensor(self, name: str) -> Tensor:
        stored, tensor = self._find(name)
        return self._in_order(stored, _dequantized(self._file, stored, tensor))

    def blocks(self, name: str) -> Blocks | None:
        stored, tensor = self._find(name)
        kind = _kind(tensor)
        if kind is None:
            return None
        out_features, in_features = tensor.shape
        data = torch.from_numpy(_stored(self._file, stored, tensor)).view(out_features, -1)
        return Blocks(
            kind=kind,
            out_features=out_features,
            in_features=in_features,
            data=self._in_order(stored, data),
        )

    def header(self, name: str) -> RowsHeader:
        stored, tensor = self._find(name)
        is_float = _whole_blocks(stored, tensor)[0] == 1
        *rows, in_features = tensor.shape
        return RowsHeader(
            out_features=math.prod(rows),
            in_features=in_features,
            block_kind=_kind(tensor),
            stored_as=None if is_float else type_name(tensor.type_id).lower(),
        )

    def _find(self, name: str) -> tuple[str, GGUFTensor]:
        stored = gguf_name(name)
        if stored not in self._file.tensors:
            raise ModelError(f"{self._file.path} has no tensor {stored!r} (for {name})")
        return stored, self._file.tensors[stored]

    def _in_order(self, stored: str, rows: Tensor) -> Tensor:
        part = stored.split(".")[-2]
        return _unpermuted(rows, self._heads[part]) if part in self._heads else rows

    def rope_divisors(self) -> tuple[float, ...]:
        """What each rotary frequency is divided by; empty if the file has no such tensor."""
        tensor = self._file.tensors.get(_ROPE_DIVISORS)
        if tensor is None:
            return ()
        return tuple(_dequantized(self._file, _ROPE_DIVISORS, tensor).tolist())


def gguf_name(name: str) -> str:
    """The file's name for a HF tensor name, e.g. blk.3.attn_q.weight."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _kind(tensor: GGUFTensor) -> WeightKind | None:
    if tensor.type_id not in _KINDS or len(tensor.shape) != 2:
        return None
    return _KINDS[GGUFType(tensor.type_id)]


def _stored(file: GGUFFile, name: str, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
    """A copy of the tensor's blocks, as its pages in the file are not for writing."""
    block_size, num_bytes = _whole_blocks(name, tensor)
    return file.data(tensor, int(np.prod(tensor.shape)) // block_size * num_bytes).copy()


def _whole_blocks(name: str, tensor: GGUFTensor) -> tuple[int, int]:
    """Elements and bytes of one of its blocks. Raises ModelError if its rows are no whole ones."""
    try:
        block_size, num_bytes = block_of(tensor.type_id)
    except ValueError as error:
        raise ModelError(f"{name} has the unknown type {tensor.type_id}") from error
    if not tensor.shape or tensor.shape[-1] % block_size:
        kind = type_name(tensor.type_id)
        raise ModelError(f"{name} of shape {tensor.shape} is not whole blocks of {kind}")
    return block_size, num_bytes


def _dequantized(file: GGUFFile, name: str, tensor: GGUFTensor) -> Tensor:
    data = _stored(file, name, tensor)
    try:
        values = dequantize(data, tensor.type_id)
    except NotImplementedError as error:
        kind = type_name(tensor.type_id)
        raise ModelError(f"{name} is stored as {kind}, which is not supported") from error
    return torch.from_numpy(values.reshape(tensor.shape))


def _unpermuted(tensor: Tensor, heads: int) -> Tensor:
    pairs = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
