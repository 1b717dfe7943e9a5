"""Names and numbers that both ends of a gRPC link must agree on."""

from __future__ import annotations

PROTOCOL_VERSION = 1
"""Of executor.proto as this build speaks it. Raised when a peer must know that meaning changed."""

OLDEST_ACCEPTED_VERSION = max(1, PROTOCOL_VERSION - 1)

ROWS_PER_SEQUENCE = 2
"""Rows of a stream's memory for each place in the batch. A sequence that leaves and the one that
takes its place may both hold one for a step; so may as many forks, which are sampled before they
have a place, as there are places. Their rows are released by the plan after."""

MODEL_FILES = ("tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json")
"""What GetModel sends, in this order; a model may lack some."""

MAX_MODEL_PART_BYTES = 1 << 20
"""Of file data in one ModelPart."""

FIELD_METADATA = "octavo-field"
"""Trailing metadata: the request field at fault, beside INVALID_ARGUMENT."""

RETRY_AFTER_METADATA = "octavo-retry-after-ms"
"""Trailing metadata: when to try again, beside RESOURCE_EXHAUSTED."""

CAPABILITY_LOGPROBS = "logprobs"
CAPABILITY_MASK = "mask"


def accepts_version(version: int) -> bool:
    """Whether a caller of this protocol version is served: N takes N and N - 1."""
    return OLDEST_ACCEPTED_VERSION <= version <= PROTOCOL_VERSION
