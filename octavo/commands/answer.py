"""Streams one answer into a terminal."""

from __future__ import annotations

from contextlib import closing
from typing import Unpack

from common.errors import ServerError
from octavo.sync_client import SyncClient
from octavo.timing import AnswerTiming
from octavo.types import Delta, Finished, GenerateOptions, Prompt


class Answer:
    """Filled while it streams, so that an interrupted one still holds what had come."""

    def __init__(self) -> None:
        self.text = ""
        self.timing = AnswerTiming()
        self.finished: Finished | None = None

    def stream(
        self, client: SyncClient, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> None:
        """Writes the text to stdout as it comes and ends the line."""
        try:
            with closing(client.generate(prompt, **options)) as chunks:
                for chunk in chunks:
                    if isinstance(chunk, Delta):
                        self.timing.arrived(len(chunk.token_ids))
                        self.text += chunk.text
                        print(chunk.text, end="", flush=True)
                    elif isinstance(chunk, Finished):
                        self.finished = chunk
        finally:
            if self.text:
                print(flush=True)
        if self.finished and self.finished.reason == "error":
            raise ServerError(self.finished.message)
