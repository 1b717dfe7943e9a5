"""Step plans and results as bytes: the incremental codec of one Execute stream.

Both ends of a stream remember each live sequence under a small row number: its spec, token history
and block table. A plan ships only what grew since the row was last named. The meaning stays whole:
`decode(encode(plan))` equals `plan`, so nothing outside this package knows of rows.

Rule 1: plans are encoded at the point where they are sent, in that order; a gap in the message
numbers ends the stream and both memories. Rule 2: anything that does not fit the memory is a
`ResyncError`. Whether block ids, token ids and lengths make sense is the runner's check.
"""

from common.codec.decoder import PlanDecoder
from common.codec.encoder import PlanEncoder
from common.codec.result import decode_result, encode_result, encode_resync

__all__ = ["PlanDecoder", "PlanEncoder", "decode_result", "encode_result", "encode_resync"]
