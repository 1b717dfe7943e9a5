"""What /metrics says about the KV pool."""

from __future__ import annotations

from tests.support.http_client import HttpClient


def num_idle_blocks(client: HttpClient) -> int:
    """Blocks that no live sequence names: free or only cached."""
    samples = client.metrics()
    return int(samples["octavo_num_free_blocks"] + samples["octavo_num_evictable_blocks"])


def num_computed_tokens(client: HttpClient) -> int:
    """Tokens whose KV was computed since the start."""
    return int(client.metrics()["octavo_computed_tokens_total"])
