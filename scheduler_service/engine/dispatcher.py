"""What workers ask of the loop, one command at a time: submit, abort, finish, call."""

from __future__ import annotations

import dataclasses
import logging
from array import array
from collections.abc import Sequence

import msgspec

from common.errors import InvariantError
from common.plan import TOKEN_TYPECODE
from scheduler_service.config import SchedulerConfig
from scheduler_service.core import invariants
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.request import (
    CacheRoot,
    PriorOutput,
    RefusedError,
    Request,
)
from scheduler_service.engine.executor_core import Outputs
from scheduler_service.engine.exposition import Exposition
from scheduler_service.engine.lane import ExecutorLane
from scheduler_service.engine.live import LiveRequests
from scheduler_service.engine.messages import (
    Abort,
    Call,
    Command,
    Finish,
    Refused,
    Reply,
    ServerInfo,
    Submit,
)
from scheduler_service.engine.metrics import RequestMetrics
from scheduler_service.engine.router import rank
from scheduler_service.engine.server import WorkerLink

log = logging.getLogger(__name__)


MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 30.0


class Dispatcher:
    """Synchronous; the loop calls it between two steps."""

    def __init__(
        self,
        config: SchedulerConfig,
        lanes: Sequence[ExecutorLane],
        live: LiveRequests,
        metrics: RequestMetrics,
        exposition: Exposition,
    ) -> None:
        self.is_draining = False
        self._config = config
        self._lanes = lanes
        self._live = live
        self._metrics = metrics
        self._exposition = exposition

    def handle(self, worker: WorkerLink, command: Command, now: float) -> None:
        match command:
            case Submit():
                refused = self._submit(worker, command, now)
                if refused is not None:
                    self._metrics.num_refused[refused.kind] += 1
                    worker.outbox.put_refused(refused)
            case Abort(request_id, call_id):
                found = self.abort(request_id)
                if call_id is not None:
                    worker.outbox.put_reply(Reply(call_id, found))
            case Finish(handle, index, num_output_tokens):
                self._finish(worker, handle, index, num_output_tokens)
            case Call(call_id, method):
                worker.outbox.put_reply(Reply(call_id, self._answer(method)))

    def _submit(self, worker: WorkerLink, submit: Submit, now: float) -> Refused | None:
        if self.is_draining:
            return Refused(submit.handle, "unavailable", "", "the server is shutting down")
        if submit.request_id in self._live:
            message = f"a request with the id {submit.request_id!r} is live"
            return Refused(submit.handle, "invalid", "request_id", message)
        lanes = [lane for lane in self._lanes if lane.accepts_requests]
        if not lanes:
            return Refused(submit.handle, "unavailable", "", "no executor is ready")
        request, outputs = to_request(submit, now)
        refused = self._place(lanes, request, outputs, submit.handle)
        if refused is not None:
            return refused
        self._live.add(worker, submit, request, now)
        return None

    def _place(
        self, lanes: Sequence[ExecutorLane], request: Request, outputs: Outputs, handle: int
    ) -> Refused | None:
        """Gives the request to the best core that has room and takes it; None once one did."""
        limit = self._config.max_num_waiting
        open_lanes = [lane for lane in lanes if lane.core.num_waiting < limit]
        if not open_lanes:
            message = f"{limit} sequences are waiting already"
            return Refused(handle, "queue_full", "", message, self._retry_after_s())
        refusal: RefusedError | None = None
        for lane in rank(open_lanes, request):
            try:
                lane.core.add(request, outputs)
            except RefusedError as error:
                refusal = refusal or error
            else:
                return None
        assert refusal is not None
        return Refused(handle, "invalid", refusal.field, str(refusal))

    def _retry_after_s(self) -> float:
        """As long as requests have waited in the queue so far, on average."""
        waits = self._metrics.queue_time_s
        mean_s = waits.sum / waits.count if waits.count else 1.0
        return min(MAX_RETRY_AFTER_S, max(MIN_RETRY_AFTER_S, mean_s))

    def place_again(self, request: Request, outputs: Outputs, origin: ExecutorLane) -> None:
        """Finds another core for work of a lost executor; its own keeps it if none takes it."""
        others = [lane for lane in self._lanes if lane.accepts_requests and lane is not origin]
        for lane in [*rank(others, request), origin]:
            try:
                lane.core.add(request, outputs)
            except RefusedError:
                continue
            return
        raise InvariantError(f"no core takes back request {request.request_id}")

    def abort(self, request_id: str) -> bool:
        """Whether such a request was live."""
        if request_id not in self._live:
            return False
        self._metrics.num_aborts += 1
        for lane in self._lanes:
            lane.core.abort(request_id)
        return True

    def _finish(self, worker: WorkerLink, handle: int, index: int, num_output_tokens: int) -> None:
        request_id = self._live.id_of(worker, handle)
        if request_id is None:
            return  # it ended while the command was on its way
        for lane in self._lanes:
            lane.core.finish(SequenceKey(request_id, index), num_output_tokens)

    def _answer(self, method: str) -> str | bool | dict[str, object] | list[object]:
        match method:
            case "metrics":
                return self._exposition.render()
            case "server_info":
                info: list[object] = msgspec.to_builtins(self._server_info())
                return info
            case "reset_prefix_cache":
                outcomes = [
                    lane.core.scheduler.reset_prefix_cache()
                    for lane in self._lanes
                    if lane.core.scheduler is not None
                ]
                return all(outcomes)
            case _:
                return {lane.address: _inspect(lane) for lane in self._lanes}

    def _server_info(self) -> ServerInfo:
        ready = [lane for lane in self._lanes if lane.accepts_requests]
        counters = [core for lane in self._lanes if (core := lane.core.counters) is not None]
        return ServerInfo(
            ready=bool(ready) and not self.is_draining,
            num_executors=len(ready),
            num_requests_running=sum(core.num_running for core in counters),
            num_requests_waiting=sum(core.num_waiting for core in counters),
            num_blocks=sum(core.num_blocks for core in counters),
            num_free_blocks=sum(
                core.num_free_blocks + core.num_evictable_blocks for core in counters
            ),
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
        )


def _inspect(lane: ExecutorLane) -> dict[str, object]:
    """A lane's state and counters, and the invariant its core breaks, if any."""
    scheduler = lane.core.scheduler
    if scheduler is None:
        return {"state": lane.state.value}
    broken = ""
    try:
        invariants.check(scheduler)
    except (AssertionError, InvariantError) as error:
        broken = str(error)
    return {
        "state": lane.state.value,
        "broken_invariant": broken,
        "counters": dataclasses.asdict(scheduler.counters),
    }


def to_request(submit: Submit, now: float) -> tuple[Request, Outputs]:
    """The core's view of a worker's command. `now` is on the clock of the core's deadlines."""
    request = Request(
        request_id=submit.request_id,
        prompt_token_ids=array(TOKEN_TYPECODE, submit.prompt_token_ids),
        params=submit.params,
        n=submit.n,
        max_tokens=submit.max_tokens,
        eos_token_ids=frozenset(submit.eos_token_ids),
        stop_token_ids=frozenset(submit.stop_token_ids),
        deadline=None if submit.timeout_s is None else now + submit.timeout_s,
        priority=submit.priority,
        cache_root=CacheRoot(tenant=submit.tenant, cache_salt=submit.cache_salt),
    )
    outputs = tuple(
        PriorOutput(index=index, token_ids=array(TOKEN_TYPECODE, tokens))
        for index, tokens in submit.prior_outputs
    )
    return request, outputs
