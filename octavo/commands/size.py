"""`octavo size`: KV bytes, tokens and requests that fit, and the roofline of a decode step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.config import parse
from common.kv_size import Device, size_text
from octavo.sizing.card import CPU
from octavo.sizing.config import SizeConfig
from octavo.sizing.estimate import SizeEstimate, estimate
from octavo.sizing.model_shape import ModelShape, shape_of


def main(argv: Sequence[str]) -> int:
    # The variables of a server that happens to run here have no say.
    config = parse(SizeConfig, argv, prog="octavo size", environ={})
    shape = shape_of(config)
    for name, text in lines(shape, config, estimate(shape, config)):
        print(f"{name:<10} {text}")
    return 0


def lines(shape: ModelShape, config: SizeConfig, estimate: SizeEstimate) -> list[tuple[str, str]]:
    rows = [*_model_lines(shape, config, estimate), *_memory_lines(config, estimate)]
    return rows if estimate.device is None else [*rows, *_time_lines(estimate)]


def _model_lines(
    shape: ModelShape, config: SizeConfig, estimate: SizeEstimate
) -> Iterator[tuple[str, str]]:
    per_token = estimate.kv_bytes_per_token
    yield (
        "model",
        f"{shape.name}: {_count(shape.num_parameters)} parameters in {shape.dtype},"
        f" {size_text(estimate.weight_bytes)}",
    )
    yield (
        "KV",
        f"{size_text(per_token)} per token ({shape.num_layers} layers x"
        f" {shape.num_kv_heads} heads x {shape.head_dim} x 2, {estimate.kv_dtype});"
        f" a request of {config.length:,} tokens: {size_text(config.length * per_token)};"
        f" 1,000,000 tokens: {size_text(1e6 * per_token)}",
    )


def _memory_lines(config: SizeConfig, estimate: SizeEstimate) -> Iterator[tuple[str, str]]:
    yield (
        "device",
        f"{_device_name(config)}{size_text(estimate.memory_bytes)}{_speed(estimate.device)}",
    )
    yield (
        "fits",
        f"{size_text(estimate.kv_bytes)} of KV hold {estimate.num_tokens:,} tokens in"
        f" {estimate.num_blocks:,} blocks of {config.block_size}:"
        f" {estimate.num_requests:,} requests of {config.length:,}",
    )
    if config.device == CPU:
        yield (
            "by itself",
            f"`up` takes no more of the {size_text(estimate.room_bytes)} beside the weights;"
            " --kv-cache-memory-bytes says how much it shall take",
        )


def _time_lines(estimate: SizeEstimate) -> Iterator[tuple[str, str]]:
    yield (
        "one token",
        f"{estimate.compute_s * 1e3:.3f} ms of compute, {estimate.read_s * 1e3:.2f} ms of"
        f" reading weights: at best {1 / max(estimate.compute_s, estimate.read_s):,.0f}"
        " tokens/s for one request",
    )
    if estimate.num_requests:
        rate = estimate.num_requests / estimate.full_step_s
        yield (
            "full",
            f"{estimate.full_step_s * 1e3:.1f} ms a step with all {estimate.num_requests:,}"
            f" requests at full length: at best {rate:,.0f} tokens/s",
        )


def _speed(device: Device | None) -> str:
    if device is None:
        return "; --flops and --bandwidth would say how fast"
    return (
        f", {device.flops / 1e12:g} TFLOP/s, {device.bandwidth / 1e12:g} TB/s;"
        f" ridge point {device.ridge_point:.0f} FLOP/byte"
    )


def _device_name(config: SizeConfig) -> str:
    """Empty where a flag makes it another device."""
    own = (config.memory_bytes, config.flops, config.bandwidth)
    return "" if any(own) else f"{config.device}: "


def _count(number: float) -> str:
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if number >= size:
            return f"{number / size:.3g}{suffix}"
    return f"{number:,.0f}"
