"""One layer's attention of single tokens, over copy bandwidth and beside torch's own attentions.

torch's read one dense [batch, heads, context, head_dim] tensor, which spares them the tables.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from tests.bench.gpu.card import Card
from tests.bench.gpu.ceilings import Ceilings
from tests.bench.gpu.paged_inputs import paged_inputs
from tests.bench.gpu.rows import Rows
from tests.support.random_llama import LlamaShape

GOAL = 0.85
_BATCHES = (1, 8, 32, 128)
_CONTEXTS = (256, 2048, 8192)
_FLEX_CASES = ((8, 2048), (32, 2048))
"""Few, as each is compiled anew, which takes seconds."""


def measure(card: Card, shape: LlamaShape, ceilings: Ceilings, rows: Rows) -> None:
    batches, contexts, flex = _BATCHES, _CONTEXTS, _FLEX_CASES
    if not card.is_gpu:
        batches, contexts, flex = (2,), (33,), ((2, 33),)
    compiled: Any = torch.compile(flex_attention) if card.is_gpu else flex_attention
    for context in contexts:
        for batch in batches:
            seconds = _ours(card, shape, ceilings, rows, batch, context)
            q, k, v = _dense(card, shape, batch, context)

            def sdpa(q: Any = q, k: Any = k, v: Any = v) -> Any:
                return scaled_dot_product_attention(q, k, v, enable_gqa=True)

            def flexible(q: Any = q, k: Any = k, v: Any = v) -> Any:
                return compiled(q, k, v, enable_gqa=True)

            peers = {"torch SDPA": sdpa}
            if (batch, context) in flex:
                peers["flex_attention"] = flexible
            for peer, run in peers.items():
                theirs = card.seconds(run) * 1e6
                case = _case(shape, batch, context)
                rows.compare(case, "time", seconds * 1e6, "us", peer=peer, theirs=theirs)


def _ours(
    card: Card, shape: LlamaShape, ceilings: Ceilings, rows: Rows, batch: int, context: int
) -> float:
    inputs = paged_inputs(card, shape, [(context - 1, 1)] * batch)
    seconds = card.seconds(inputs.attend)
    per_token = 2 * shape.num_kv_heads * shape.head_dim * card.dtype.itemsize
    rate = (batch * context * per_token + 2 * inputs.q.nbytes) / seconds
    bound = batch >= 32 and context >= 2048
    case, limit = _case(shape, batch, context), ceilings.copy_bytes_s / 1e9
    rows.add(case, "time", seconds * 1e6, "us")
    rows.add(case, "KV read", rate / 1e9, "GB/s")
    goal = f"at least {GOAL}" if bound else ""
    rows.compare(case, "KV read", rate / 1e9, "GB/s", peer="copy", theirs=limit, goal=goal)
    return seconds


def _case(shape: LlamaShape, batch: int, context: int) -> str:
    return f"{shape.name}: decode attention, {batch} x {context}"


def _dense(card: Card, shape: LlamaShape, batch: int, context: int) -> list[torch.Tensor]:
    sizes = [(shape.num_heads, 1), (shape.num_kv_heads, context), (shape.num_kv_heads, context)]
    return [
        torch.randn(batch, heads, n, shape.head_dim, device=card.device, dtype=card.dtype)
        for heads, n in sizes
    ]
