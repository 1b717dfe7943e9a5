"""Sequence specs and sampling parameters, as the message that opens a row."""

from __future__ import annotations

import numpy as np

from common.codec.columns import unpack, unpack_f32
from common.errors import ResyncError
from common.plan import SamplingParams, SequenceId, SequenceSpec
from proto import executor_pb2


def write_spec(message: executor_pb2.NewRow, row: int, spec: SequenceSpec) -> None:
    message.row = row
    message.sequence_id = spec.sequence_id
    message.index = spec.index
    message.num_prompt_tokens = spec.num_prompt_tokens
    _write_params(message.params, spec.params)


def read_spec(message: executor_pb2.NewRow) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=SequenceId(message.sequence_id),
        index=message.index,
        num_prompt_tokens=message.num_prompt_tokens,
        params=_read_params(message.params),
    )


def _write_params(message: executor_pb2.SamplingParams, params: SamplingParams) -> None:
    message.temperature = params.temperature
    message.top_k = params.top_k
    message.top_p = params.top_p
    message.min_p = params.min_p
    message.repetition_penalty = params.repetition_penalty
    message.presence_penalty = params.presence_penalty
    message.frequency_penalty = params.frequency_penalty
    message.seed = params.seed
    message.min_tokens = params.min_tokens
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        message.bias_token_ids = np.array(ids, "<u4").tobytes()
        message.bias_values = np.array(values, "<f4").tobytes()
    if params.stop_token_ids:
        message.stop_token_ids = np.array(params.stop_token_ids, "<u4").tobytes()
    if params.num_logprobs is not None:
        message.num_logprobs = params.num_logprobs
    if params.num_prompt_logprobs is not None:
        message.num_prompt_logprobs = params.num_prompt_logprobs


def _read_params(message: executor_pb2.SamplingParams) -> SamplingParams:
    bias_ids = unpack(message.bias_token_ids, "bias_token_ids").tolist()
    bias_values = unpack_f32(message.bias_values, "bias_values")
    if len(bias_ids) != len(bias_values):
        raise ResyncError(f"{len(bias_ids)} bias ids with {len(bias_values)} values")
    prompt_logprobs = message.HasField("num_prompt_logprobs")
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        seed=message.seed,
        logit_bias=tuple(zip(bias_ids, bias_values, strict=True)),
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(unpack(message.stop_token_ids, "stop_token_ids").tolist()),
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        num_prompt_logprobs=message.num_prompt_logprobs if prompt_logprobs else None,
    )
