"""`/metrics`: names and help for what the loop and its cores count.

With `--metrics-compat vllm` whatever has a counterpart there appears under `vllm:` as well, with
the labels it has there, so that dashboards made for it work unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler_service.core.counters import Counters
from scheduler_service.core.request import FinishReason
from scheduler_service.engine.histogram import Histogram
from scheduler_service.engine.lane import ExecutorLane, LaneState
from scheduler_service.engine.metrics import RequestMetrics
from scheduler_service.engine.served_model import ServedModel

PREFIX = "octavo_"
COMPAT_PREFIX = "vllm:"
COMPAT_NAMES = frozenset(
    {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "generation_tokens",
        "request_success",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_generation_tokens",
        "cache_config_info",
    }
)


class Exposition(Collector):
    """One registry of its own, so that nothing of another component appears in it."""

    def __init__(
        self,
        requests: RequestMetrics,
        lanes: Sequence[ExecutorLane],
        served: ServedModel,
        *,
        compat: str | None = None,
    ) -> None:
        self._requests = requests
        self._lanes = lanes
        self._served = served
        self._compat = compat
        self._retired: Counter[str] = Counter()
        """Counts of cores that are gone, by field."""
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> str:
        """Prometheus text format."""
        return generate_latest(self._registry).decode()

    def retire(self, lane: ExecutorLane) -> None:
        """To be called before a lane is dropped: sums over executors must not fall."""
        if (core := lane.core.counters) is not None:
            self._retired.update({field: getattr(core, field) for _, _, field in _CORE_COUNTERS})

    def describe(self) -> list[Metric]:
        return []  # nothing is known before a scrape

    def collect(self) -> Iterator[Metric]:
        page = _Page(PREFIX, {})
        self._fill(page)
        yield from page.families.values()
        if self._compat is not None and self._served.ready is not None:
            page = _Page(COMPAT_PREFIX, {"model_name": self._served.ready.name, "engine": "0"})
            self._fill(page)
            yield from (page.families[name] for name in page.families if name in COMPAT_NAMES)

    def _fill(self, page: _Page) -> None:
        _add_requests(page, self._requests)
        cores = [core for lane in self._lanes if (core := lane.core.counters) is not None]
        _add_cores(page, cores, self._retired)
        for lane in self._lanes:
            _add_lane(page, lane)


class _Page:
    """Families under one prefix, every sample with the same fixed labels beside its own."""

    def __init__(self, prefix: str, labels: Mapping[str, str]) -> None:
        self.families: dict[str, Metric] = {}
        self._prefix = prefix
        self._labels = dict(labels)

    def counter(self, name: str, help: str, value: float, **labels: str) -> None:
        family = self._family(CounterMetricFamily, name, help, labels)
        family.add_metric([*self._labels.values(), *labels.values()], value)

    def gauge(self, name: str, help: str, value: float, **labels: str) -> None:
        family = self._family(GaugeMetricFamily, name, help, labels)
        family.add_metric([*self._labels.values(), *labels.values()], value)

    def histogram(self, name: str, help: str, histogram: Histogram, **labels: str) -> None:
        family = self._family(HistogramMetricFamily, name, help, labels)
        values = [*self._labels.values(), *labels.values()]
        family.add_metric(values, histogram.buckets(), histogram.sum)

    def _family(
        self, make: Callable[..., Metric], name: str, help: str, labels: Mapping[str, str]
    ) -> Any:
        if name not in self.families:
            self.families[name] = make(self._prefix + name, help, labels=[*self._labels, *labels])
        return self.families[name]


def _add_requests(page: _Page, requests: RequestMetrics) -> None:
    page.counter("prompt_tokens", "Prompt tokens of admitted requests.", requests.num_prompt_tokens)
    page.counter("generation_tokens", "Tokens handed out.", requests.num_generation_tokens)
    for reason in FinishReason:
        page.counter(
            "request_success",
            "Choices that ended, by reason.",
            requests.num_finished[reason.value],
            finished_reason=reason.value,
        )
    for kind in ("invalid", "queue_full", "unavailable"):
        page.counter(
            "requests_refused",
            "Requests refused by the loop.",
            requests.num_refused[kind],
            kind=kind,
        )
    page.counter("aborts", "Live requests ended by their client.", requests.num_aborts)
    histograms = {
        "time_to_first_token_seconds": ("Arrival to first token.", requests.first_token_s),
        "inter_token_latency_seconds": ("Between tokens of a choice.", requests.inter_token_s),
        "e2e_request_latency_seconds": ("Arrival to end.", requests.request_s),
        "request_queue_time_seconds": ("Arrival to first admission.", requests.queue_time_s),
        "request_generation_tokens": ("Output tokens per choice.", requests.output_tokens),
    }
    for name, (help, histogram) in histograms.items():
        page.histogram(name, help, histogram)


def _add_cores(page: _Page, cores: Sequence[Counters], retired: Mapping[str, int]) -> None:
    """Sums over executors; `retired` are the counts of those that are gone."""

    def total(name: str) -> float:
        return float(sum(getattr(core, name) for core in cores))

    for name, help, field in _CORE_GAUGES:
        page.gauge(name, help, total(field))
    for name, help, field in _CORE_COUNTERS:
        page.counter(name, help, total(field) + retired.get(field, 0))
    num_blocks = total("num_blocks")
    usage = total("num_referenced_blocks") / num_blocks if num_blocks else 0.0
    page.gauge("kv_cache_usage_perc", "Blocks in use by live sequences, 0 to 1.", usage)


_CORE_GAUGES = (
    ("num_requests_running", "Sequences that hold blocks.", "num_running"),
    ("num_requests_waiting", "Sequences in the queue.", "num_waiting"),
    ("num_free_blocks", "KV blocks that hold nothing.", "num_free_blocks"),
    ("num_evictable_blocks", "KV blocks cached for reuse alone.", "num_evictable_blocks"),
)
_CORE_COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the cache.", "num_prefix_queried_tokens"),
    ("prefix_cache_hits", "Prompt tokens found in the cache.", "num_prefix_hit_tokens"),
    ("num_preemptions", "Sequences that gave up their blocks.", "num_preemptions"),
    ("recomputed_tokens", "Tokens computed again.", "num_recomputed_tokens"),
    ("recompute_avoided_tokens", "Tokens found again.", "num_recompute_avoided_tokens"),
    ("computed_tokens", "Tokens whose KV was computed.", "num_computed_tokens"),
    ("stale_results", "Results that named no step in flight.", "num_stale_results"),
    ("voided_steps", "Steps in flight on streams that ended.", "num_voided_steps"),
    ("starved_sequences", "Sequences that alone found no block.", "num_starved"),
    ("twin_waits", "Steps requests waited for a prefix in progress.", "num_twin_waits"),
)


def _add_lane(page: _Page, lane: ExecutorLane) -> None:
    label, metrics = {"executor": lane.address}, lane.metrics
    ready = float(lane.state is LaneState.READY)
    page.gauge("executor_ready", "Whether plans are sent to it.", ready, **label)
    counters = {
        "executor_reconnects": ("Step streams opened again.", metrics.num_reconnects),
        "overdue_steps": ("Steps given up by the watchdog.", metrics.num_overdue_steps),
        "invalid_plans": ("Plans the executor found invalid.", metrics.num_invalid_plans),
        "steps": ("Steps answered.", metrics.num_steps),
        "steps_ready": ("Steps whose plan was there in time.", metrics.num_steps_ready),
    }
    for name, (help, value) in counters.items():
        page.counter(name, help, value, **label)
    histograms = {
        "step_gap_seconds": ("Device idle before a step.", metrics.gap_s),
        "step_plan_bytes": ("Encoded size of a plan.", metrics.plan_bytes),
        "step_plan_tokens": ("Tokens of a plan.", metrics.plan_tokens),
        "step_rtt_seconds": ("Plan sent to result received.", metrics.round_trip_s),
        "step_prepare_seconds": ("Plan to tensors.", metrics.prepare_s),
        "step_forward_seconds": ("Forward pass.", metrics.forward_s),
        "step_sample_seconds": ("Sampling.", metrics.sample_s),
        "kv_cache_waste_ratio": (
            "Slots of live tables without a token, by step.",
            metrics.kv_waste,
        ),
    }
    for name, (help, histogram) in histograms.items():
        page.histogram(name, help, histogram, **label)
    info = lane.core.info
    if info is not None:
        page.gauge("epoch", "Fencing number of our claim.", info.epoch, **label)
        page.gauge(
            "cache_config_info",
            "The KV pool; the value is always 1.",
            1,
            block_size=str(info.block_size),
            num_gpu_blocks=str(info.num_blocks),
            cache_dtype=info.kv_cache_dtype,
            **label,
        )
