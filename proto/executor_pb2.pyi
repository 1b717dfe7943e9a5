from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PLAN: _ClassVar[ErrorCode]
    ERROR_CODE_NON_FINITE: _ClassVar[ErrorCode]
    ERROR_CODE_NO_CANDIDATE: _ClassVar[ErrorCode]
    ERROR_CODE_MASK_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_PLAN: ErrorCode
ERROR_CODE_NON_FINITE: ErrorCode
ERROR_CODE_NO_CANDIDATE: ErrorCode
ERROR_CODE_MASK_TIMEOUT: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode

class HelloRequest(_message.Message):
    __slots__ = ("scheduler_id", "epoch", "protocol_version")
    SCHEDULER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    scheduler_id: str
    epoch: int
    protocol_version: int
    def __init__(self, scheduler_id: _Optional[str] = ..., epoch: _Optional[int] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("incarnation", "epoch", "protocol_version", "model_fingerprint", "model_name", "block_size", "num_blocks", "max_rows", "max_model_len", "max_num_batched_tokens", "vocab_size", "capabilities", "kv_bytes_per_token", "dtype", "kv_cache_dtype", "device")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    epoch: int
    protocol_version: int
    model_fingerprint: str
    model_name: str
    block_size: int
    num_blocks: int
    max_rows: int
    max_model_len: int
    max_num_batched_tokens: int
    vocab_size: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    kv_bytes_per_token: int
    dtype: str
    kv_cache_dtype: str
    device: str
    def __init__(self, incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., protocol_version: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., model_name: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_rows: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ..., kv_bytes_per_token: _Optional[int] = ..., dtype: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("known_fingerprint",)
    KNOWN_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    known_fingerprint: str
    def __init__(self, known_fingerprint: _Optional[str] = ...) -> None: ...

class ModelPart(_message.Message):
    __slots__ = ("fingerprint", "file_name", "data")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    file_name: str
    data: bytes
    def __init__(self, fingerprint: _Optional[str] = ..., file_name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class StepMessage(_message.Message):
    __slots__ = ("incarnation", "epoch", "step_id", "message_number", "plan", "mask", "skip")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    epoch: int
    step_id: int
    message_number: int
    plan: StepPlan
    mask: Mask
    skip: Skip
    def __init__(self, incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., message_number: _Optional[int] = ..., plan: _Optional[_Union[StepPlan, _Mapping]] = ..., mask: _Optional[_Union[Mask, _Mapping]] = ..., skip: _Optional[_Union[Skip, _Mapping]] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("released", "new_rows", "num_decodes", "rows", "starts", "lengths", "num_samples", "sample_rows", "token_growth_chunks", "token_growth_counts", "tokens", "block_growth_chunks", "block_growth_counts", "blocks", "copy_sources", "copy_destinations", "masked_sequences")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    NEW_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_GROWTH_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_GROWTH_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_GROWTH_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_GROWTH_COUNTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COPY_SOURCES_FIELD_NUMBER: _ClassVar[int]
    COPY_DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    MASKED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    released: bytes
    new_rows: _containers.RepeatedCompositeFieldContainer[NewRow]
    num_decodes: int
    rows: bytes
    starts: bytes
    lengths: bytes
    num_samples: bytes
    sample_rows: bytes
    token_growth_chunks: bytes
    token_growth_counts: bytes
    tokens: bytes
    block_growth_chunks: bytes
    block_growth_counts: bytes
    blocks: bytes
    copy_sources: bytes
    copy_destinations: bytes
    masked_sequences: bytes
    def __init__(self, released: _Optional[bytes] = ..., new_rows: _Optional[_Iterable[_Union[NewRow, _Mapping]]] = ..., num_decodes: _Optional[int] = ..., rows: _Optional[bytes] = ..., starts: _Optional[bytes] = ..., lengths: _Optional[bytes] = ..., num_samples: _Optional[bytes] = ..., sample_rows: _Optional[bytes] = ..., token_growth_chunks: _Optional[bytes] = ..., token_growth_counts: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., block_growth_chunks: _Optional[bytes] = ..., block_growth_counts: _Optional[bytes] = ..., blocks: _Optional[bytes] = ..., copy_sources: _Optional[bytes] = ..., copy_destinations: _Optional[bytes] = ..., masked_sequences: _Optional[bytes] = ...) -> None: ...

class NewRow(_message.Message):
    __slots__ = ("row", "sequence_id", "index", "num_prompt_tokens", "params")
    ROW_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    row: int
    sequence_id: int
    index: int
    num_prompt_tokens: int
    params: SamplingParams
    def __init__(self, row: _Optional[int] = ..., sequence_id: _Optional[int] = ..., index: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., params: _Optional[_Union[SamplingParams, _Mapping]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "bias_token_ids", "bias_values", "min_tokens", "stop_token_ids", "num_logprobs", "num_prompt_logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    bias_token_ids: bytes
    bias_values: bytes
    min_tokens: int
    stop_token_ids: bytes
    num_logprobs: int
    num_prompt_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., bias_token_ids: _Optional[bytes] = ..., bias_values: _Optional[bytes] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[bytes] = ..., num_logprobs: _Optional[int] = ..., num_prompt_logprobs: _Optional[int] = ...) -> None: ...

class Mask(_message.Message):
    __slots__ = ("sequence_id", "allowed")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    allowed: bytes
    def __init__(self, sequence_id: _Optional[int] = ..., allowed: _Optional[bytes] = ...) -> None: ...

class Skip(_message.Message):
    __slots__ = ("sequence_id",)
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    def __init__(self, sequence_id: _Optional[int] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("incarnation", "epoch", "step_id", "tokens", "errors", "timings", "plan_was_ready", "logprob_counts", "logprob_token_ids", "logprobs", "logprob_ranks", "resync", "prompt_logprobs")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PLAN_WAS_READY_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_RANKS_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    epoch: int
    step_id: int
    tokens: bytes
    errors: _containers.RepeatedCompositeFieldContainer[SequenceError]
    timings: StepTimings
    plan_was_ready: bool
    logprob_counts: bytes
    logprob_token_ids: bytes
    logprobs: bytes
    logprob_ranks: bytes
    resync: Resync
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    def __init__(self, incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., tokens: _Optional[bytes] = ..., errors: _Optional[_Iterable[_Union[SequenceError, _Mapping]]] = ..., timings: _Optional[_Union[StepTimings, _Mapping]] = ..., plan_was_ready: bool = ..., logprob_counts: _Optional[bytes] = ..., logprob_token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., logprob_ranks: _Optional[bytes] = ..., resync: _Optional[_Union[Resync, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("sequence_id", "first_position", "counts", "token_ids", "logprobs", "ranks")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    first_position: int
    counts: bytes
    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    def __init__(self, sequence_id: _Optional[int] = ..., first_position: _Optional[int] = ..., counts: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ...) -> None: ...

class SequenceError(_message.Message):
    __slots__ = ("sequence_id", "code", "message")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    code: ErrorCode
    message: str
    def __init__(self, sequence_id: _Optional[int] = ..., code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StepTimings(_message.Message):
    __slots__ = ("queue_ns", "prepare_ns", "forward_ns", "sample_ns", "mask_wait_ns", "gap_ns")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    PREPARE_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    MASK_WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    GAP_NS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    prepare_ns: int
    forward_ns: int
    sample_ns: int
    mask_wait_ns: int
    gap_ns: int
    def __init__(self, queue_ns: _Optional[int] = ..., prepare_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ..., mask_wait_ns: _Optional[int] = ..., gap_ns: _Optional[int] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoReply(_message.Message):
    __slots__ = ("incarnation", "max_epoch", "owner", "num_steps", "num_decode_steps", "num_decode_steps_ready", "num_resyncs", "num_sequence_errors", "draining", "num_rows", "memory_weights_bytes", "memory_kv_bytes")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MAX_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_STEPS_READY_FIELD_NUMBER: _ClassVar[int]
    NUM_RESYNCS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    max_epoch: int
    owner: str
    num_steps: int
    num_decode_steps: int
    num_decode_steps_ready: int
    num_resyncs: int
    num_sequence_errors: int
    draining: bool
    num_rows: int
    memory_weights_bytes: int
    memory_kv_bytes: int
    def __init__(self, incarnation: _Optional[int] = ..., max_epoch: _Optional[int] = ..., owner: _Optional[str] = ..., num_steps: _Optional[int] = ..., num_decode_steps: _Optional[int] = ..., num_decode_steps_ready: _Optional[int] = ..., num_resyncs: _Optional[int] = ..., num_sequence_errors: _Optional[int] = ..., draining: bool = ..., num_rows: _Optional[int] = ..., memory_weights_bytes: _Optional[int] = ..., memory_kv_bytes: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_ms",)
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    def __init__(self, timeout_ms: _Optional[int] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("idle",)
    IDLE_FIELD_NUMBER: _ClassVar[int]
    idle: bool
    def __init__(self, idle: bool = ...) -> None: ...
