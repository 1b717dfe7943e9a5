"""What every route and RPC needs, and how a request becomes a running generation."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator

from common.errors import InvalidRequestError, UnavailableError
from scheduler_service.api.generate_request import GenerateRequest
from scheduler_service.api.generation import Generation
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.submission import prepare
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.connection import EngineConnection

log = logging.getLogger(__name__)


class Service:
    """One per worker. Serves while the model still loads: then `model` says to wait."""

    def __init__(self, config: SchedulerConfig, connection: EngineConnection) -> None:
        self.config = config
        self.connection = connection
        self._model: ServedModel | None = None
        self._is_draining = False
        self._running: set[Generation] = set()
        self._has_ended = asyncio.Event()
        """A generation has."""

    @property
    def model(self) -> ServedModel:
        """UnavailableError until the model is known."""
        if self._model is None:
            raise UnavailableError(
                f"the model is not loaded yet: {self.connection.readiness.reason}"
            )
        return self._model

    def set_model(self, model: ServedModel) -> None:
        self._model = model

    async def finish(self, grace_s: float) -> None:
        """Drains: running generations get `grace_s`, then end as unavailable."""
        self.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._all_ended()
        except TimeoutError:
            log.warning("ending requests that still run", extra={"num": len(self._running)})
            for generation in self._running:
                generation.fail(UnavailableError("the server is shutting down"))

    async def close(self) -> None:
        """Ends what belongs to the model."""
        if self._model is not None and self._model.template is not None:
            await self._model.template.close()

    def drain(self) -> None:
        """Refuses new requests from now on; running ones go on."""
        self._is_draining = True

    @property
    def unready_reason(self) -> str | None:
        """None: requests are served now."""
        if self._is_draining:
            return "the server is shutting down"
        if self._model is None:
            return "the model is not loaded yet"
        readiness = self.connection.readiness
        return None if readiness.ready else readiness.reason or "no executor is ready"

    @contextlib.asynccontextmanager
    async def generate(
        self, request: GenerateRequest, arrived_at: float | None = None
    ) -> AsyncIterator[Generation]:
        """A started generation. Leaving the block aborts whatever of it still runs."""
        if self._is_draining:
            raise UnavailableError("the server is shutting down; send this to another one")
        arrived_at = time.monotonic() if arrived_at is None else arrived_at
        if request.timeout_s is None and self.config.request_timeout is not None:
            request = dataclasses.replace(request, timeout_s=self.config.request_timeout)
        generation: Generation | None = None
        try:
            submissions = await prepare(request, self.model, arrived_at)
            generation = Generation(self.connection, self.model.tokenizer, submissions)
            self._running.add(generation)
            generation.start()
            yield generation
        except InvalidRequestError as error:
            if error.field is None:
                raise
            field = request.written_name(error.field)
            raise InvalidRequestError(str(error), field=field) from error
        finally:
            if generation is not None:
                generation.close()
                self._running.discard(generation)
                self._has_ended.set()

    async def _all_ended(self) -> None:
        while self._running:
            self._has_ended.clear()
            await self._has_ended.wait()
