"""/metrics of the step loop."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.builders import random_ids
from tests.support.engine_harness import Harness, engine
from tests.support.fake_executor_client import FakeExecutorClient

FAMILIES = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "requests_refused": "counter",
    "aborts": "counter",
    "num_preemptions": "counter",
    "recomputed_tokens": "counter",
    "recompute_avoided_tokens": "counter",
    "computed_tokens": "counter",
    "stale_results": "counter",
    "executor_reconnects": "counter",
    "executor_ready": "gauge",
    "epoch": "gauge",
    "cache_config_info": "gauge",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "step_gap_seconds": "histogram",
    "step_plan_bytes": "histogram",
    "step_rtt_seconds": "histogram",
    "step_forward_seconds": "histogram",
    "kv_cache_waste_ratio": "histogram",
}

COMPAT_FAMILIES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:num_preemptions",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:cache_config_info",
}


async def scrape(harness: Harness) -> dict[str, float]:
    """Samples by name and sorted labels, as in `name{a=b}`."""
    text = await harness.worker.call("metrics")
    assert isinstance(text, str)
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            samples[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return samples


async def families(harness: Harness) -> dict[str, str]:
    text = await harness.worker.call("metrics")
    assert isinstance(text, str)
    return {family.name: family.type for family in text_string_to_metric_families(text)}


async def test_every_family_is_there_from_the_start_and_of_its_kind() -> None:
    async with engine() as harness:
        found = await families(harness)
    assert {f"octavo_{name}": kind for name, kind in FAMILIES.items()}.items() <= found.items()
    assert not any(name.startswith("vllm:") for name in found)


async def test_counts_are_those_of_what_happened() -> None:
    async with engine(max_num_waiting=2, max_num_seqs=1) as harness:
        first = harness.worker.submit(random_ids(1, 41), max_tokens=5)
        await harness.worker.ended(first)
        second = harness.worker.submit(random_ids(1, 41), max_tokens=3)
        await harness.worker.ended(second)
        aborted = harness.worker.submit(random_ids(2, 8), max_tokens=900)
        await harness.worker.until(lambda: aborted.num_tokens > 3)
        harness.worker.abort(aborted)
        await harness.worker.ended(aborted)
        harness.worker.submit(random_ids(2, 8), max_tokens=99_999)
        samples = await scrape(harness)
    assert samples["octavo_prompt_tokens_total"] == 41 + 41 + 8
    assert samples["octavo_generation_tokens_total"] == 5 + 3 + aborted.num_tokens
    assert samples["octavo_request_success_total{finished_reason=length}"] == 2
    assert samples["octavo_request_success_total{finished_reason=abort}"] == 1
    assert samples["octavo_requests_refused_total{kind=invalid}"] == 1
    assert samples["octavo_aborts_total"] == 1
    assert samples["octavo_prefix_cache_queries_total"] == 41 + 41 + 8
    assert samples["octavo_prefix_cache_hits_total"] == 40
    assert samples["octavo_time_to_first_token_seconds_count"] == 3
    assert samples["octavo_e2e_request_latency_seconds_count"] == 3
    assert samples["octavo_inter_token_latency_seconds_count"] == 4 + 2 + aborted.num_tokens - 1
    assert samples["octavo_num_requests_running"] == 0
    assert samples["octavo_epoch{executor=fake:1}"] == 1


async def test_gauges_follow_the_queue_and_the_pool() -> None:
    client = FakeExecutorClient(num_blocks=100, block_size=4)
    async with engine(client, max_num_seqs=1, enable_prefix_caching=False) as harness:
        client.hold()
        running = harness.worker.submit(random_ids(1, 10), max_tokens=40)
        waiting = harness.worker.submit(random_ids(2, 10), max_tokens=40)
        client.release(1)
        await harness.worker.until(lambda: running.num_tokens == 1)
        samples = await scrape(harness)
        assert samples["octavo_num_requests_running"] == 1
        assert samples["octavo_num_requests_waiting"] == 1
        assert samples["octavo_kv_cache_usage_perc"] == pytest.approx(3 / 100)
        client.resume()
        await harness.worker.ended(running, waiting)


async def test_waste_of_the_pool_is_sampled_once_a_step() -> None:
    client = FakeExecutorClient(num_blocks=100, block_size=4)
    async with engine(client, run_ahead_depth=1, enable_prefix_caching=False) as harness:
        received = harness.worker.submit(random_ids(1, 10), max_tokens=4)
        await harness.worker.ended(received)
        samples = await scrape(harness)
    name, label = "octavo_kv_cache_waste_ratio", "{executor=fake:1}"
    # Steps leave 10, 11 and 12 tokens in 3 blocks; after the fourth nobody runs.
    assert samples[f"{name}_count{label}"] == 3
    assert samples[f"{name}_sum{label}"] == pytest.approx(2 / 12 + 1 / 12)


async def test_a_reconnect_is_counted_and_its_epoch_told() -> None:
    async with engine() as harness:
        harness.client.take_over()
        await harness.worker.until(lambda: len(harness.client.streams) == 2)
        samples = await scrape(harness)
    assert samples["octavo_executor_reconnects_total{executor=fake:1}"] == 1
    assert samples["octavo_epoch{executor=fake:1}"] == 3


async def test_names_of_vllm_are_published_on_request_with_its_labels() -> None:
    async with engine(metrics_compat="vllm", served_model_name="m") as harness:
        received = harness.worker.submit(random_ids(1, 6), max_tokens=5)
        await harness.worker.ended(received)
        assert set(await families(harness)) >= COMPAT_FAMILIES
        samples = await scrape(harness)
    assert samples["vllm:generation_tokens_total{engine=0,model_name=m}"] == 5
    name = "vllm:request_success_total{engine=0,finished_reason=length,model_name=m}"
    assert samples[name] == 1
