"""Prometheus metrics of one executor process, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.errors import ConfigError
from executor_service.rpc.counters import ExecutorCounters
from executor_service.rpc.queued_step import StepDone

_SECONDS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
_COUNTERS = {
    "num_steps": ("steps", "Steps run."),
    "num_decode_steps": ("decode_steps", "Steps of decodes alone that followed another."),
    "num_decode_steps_ready": (
        "decode_steps_ready",
        "Of those, whose plan was decoded when the step before ended.",
    ),
    "num_computed_tokens": ("computed_tokens", "Tokens whose KV was computed."),
    "num_sampled_tokens": ("sampled_tokens", "Tokens sampled."),
    "num_sequence_errors": ("sequence_errors", "Sequences that failed alone."),
    "num_streams": ("streams", "Execute streams opened."),
    "num_resyncs": ("resyncs", "Streams ended for a message that did not fit."),
    "num_void_steps": ("void_steps", "Steps in flight when their stream ended."),
    "plan_bytes": ("plan_bytes", "Bytes of plans received."),
}


class ExecutorMetrics:
    """Durations as they happen; counts are read when the page is."""

    def __init__(self, counters: ExecutorCounters, gauges: Callable[[], dict[str, float]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Counts(counters, gauges))
        self._busy = self._histogram("step_seconds", "From start to end of a step.")
        self._gap = self._histogram("step_gap_seconds", "From the end of a step to the next start.")
        self._queue = self._histogram("step_queue_seconds", "From decoded to started.")
        self._forward = self._histogram("step_forward_seconds", "Forward pass of a step.")
        self._sample = self._histogram("step_sample_seconds", "Sampling of a step.")

    def step_done(self, done: StepDone) -> None:
        if done.result is None:
            return
        timings = done.result.timings
        self._busy.observe(done.busy_ns / 1e9)
        self._queue.observe(timings.queue_ns / 1e9)
        self._forward.observe(timings.forward_ns / 1e9)
        self._sample.observe(timings.sample_ns / 1e9)
        if done.follows_step:
            self._gap.observe(timings.gap_ns / 1e9)

    def serve(self, host: str, port: int) -> MetricsPage:
        """Starts the page on a thread of its own. ConfigError if the port cannot be had."""
        return MetricsPage(self.registry, host, port)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"octavo_executor_{name}", text, registry=self.registry, buckets=_SECONDS)


class MetricsPage:
    """HTTP /metrics."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise ConfigError(f"--metrics-port {port} on {host}: {error.strerror}") from error
        self.port = int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Counts(Collector):
    def __init__(self, counters: ExecutorCounters, gauges: Callable[[], dict[str, float]]) -> None:
        self._counters = counters
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        for attribute, (name, text) in _COUNTERS.items():
            value = getattr(self._counters, attribute)
            yield CounterMetricFamily(f"octavo_executor_{name}", text, value=value)
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"octavo_executor_{name}", name.replace("_", " "), value=value)
