"""The front door for people: the client library and the `octavo` command.

Rule: what a client imports never imports a service. Only `octavo.stack` knows the services'
configs, and starts them as processes.
"""

from __future__ import annotations

from octavo.client import Client
from octavo.retries import RetryPolicy
from octavo.sync_client import SyncClient
from octavo.types import (
    Choice,
    Chunk,
    Delta,
    Finished,
    GenerateOptions,
    Generation,
    Message,
    ModelInfo,
    Prompt,
    ServerInfo,
    Started,
    TokenLogprobs,
    Usage,
)

__all__ = [
    "Choice",
    "Chunk",
    "Client",
    "Delta",
    "Finished",
    "GenerateOptions",
    "Generation",
    "Message",
    "ModelInfo",
    "Prompt",
    "RetryPolicy",
    "ServerInfo",
    "Started",
    "SyncClient",
    "TokenLogprobs",
    "Usage",
]
