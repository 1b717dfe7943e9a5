"""Forward passes on the host as one native call each, logits included."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import cast

from common.plan import TOKEN_TYPECODE
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.kv import NativeKV, without_data
from executor_service.kernels.native.step import (
    LayerParts,
    ModelParts,
    Projection,
    StepInput,
    WholeStep,
    step_bytes,
)
from executor_service.kernels.native.structs import Limits
from executor_service.kernels.native.weights import NativeWeight
from executor_service.memory.kv_pool import KVPool
from executor_service.models.layers import Linear
from executor_service.models.llama import Layer, LlamaModel
from executor_service.runner.model_runner import ForwardOutputs
from executor_service.runner.sampler import Logits
from executor_service.runner.step_chunks import StepChunks
from executor_service.runner.team_size import TeamSize


def forward_bytes(
    model: LlamaModel, backend: NativeBackend, block_size: int, limits: Limits
) -> int:
    """What a NativeForward allocates, whatever number of blocks the pool has."""
    shape = model.config.kv_shape(num_blocks=0, block_size=block_size)
    kv = without_data(shape, backend.kv_dtype)
    return step_bytes(backend.library, _parts(model), kv, limits)


class NativeForward:
    """The model over one pool."""

    def __init__(
        self, model: LlamaModel, backend: NativeBackend, pool: KVPool, limits: Limits
    ) -> None:
        kv = cast(NativeKV, pool.storage)
        self.step = WholeStep(backend.library, _parts(model), kv, limits)
        self._logits = Logits(self.step.logits, self.step.maxima)
        self._team = TeamSize(backend.num_threads)

    def forward(self, step: StepChunks, rows: Sequence[int]) -> ForwardOutputs:
        columns, num_tokens = step.columns, len(step.token_ids)
        inputs = StepInput(
            starts=columns.starts,
            lengths=columns.lengths,
            num_blocks=array(TOKEN_TYPECODE, columns.num_blocks),
            blocks=columns.blocks,
            token_ids=step.token_ids,
        )
        wanted = array(TOKEN_TYPECODE, rows)
        self.step.run(inputs, wanted, self._team.of(num_tokens))
        self._team.ended(num_tokens, time.perf_counter_ns())
        return ForwardOutputs(self.step.hidden, self._logits if rows else None)


def _parts(model: LlamaModel) -> ModelParts:
    config = model.config
    return ModelParts(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        scale=model.layers[0].attention.scale,
        embedding=cast(NativeWeight, model.embedding),
        cos=model.cos,
        sin=model.sin,
        layers=[_layer(layer) for layer in model.layers],
        norm=model.norm.weight,
        head=_projection(model.head),
    )


def _layer(layer: Layer) -> LayerParts:
    norms = layer.attention.norms
    return LayerParts(
        attention_norm=layer.attention_norm.weight,
        qkv=_projection(layer.attention.qkv),
        q_norm=norms[0].weight if norms else None,
        k_norm=norms[1].weight if norms else None,
        output=_projection(layer.attention.output),
        feed_forward_norm=layer.feed_forward_norm.weight,
        gate_up=_projection(layer.feed_forward.gate_up),
        down=_projection(layer.feed_forward.down),
    )


def _projection(linear: Linear) -> Projection:
    return Projection(weight=cast(NativeWeight, linear.weight), bias=linear.bias)
