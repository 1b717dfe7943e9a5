"""Devices by name, with the peak figures of their data sheets (16-bit, dense), and this machine."""

from __future__ import annotations

from dataclasses import dataclass

from common.kv_size import A100, GIB, Device
from executor_service.memory.sizing import available_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    device: Device | None
    """None: its speed is not known."""
    memory_bytes: float


CPU = "cpu"

CARDS = {
    "a100": Card(device=A100, memory_bytes=80 * GIB),
    "h100": Card(device=Device(flops=989e12, bandwidth=3.35e12), memory_bytes=80 * GIB),
    "h200": Card(device=Device(flops=989e12, bandwidth=4.8e12), memory_bytes=141e9),
    "l4": Card(device=Device(flops=121e12, bandwidth=0.3e12), memory_bytes=24e9),
    "t4": Card(device=Device(flops=65e12, bandwidth=0.32e12), memory_bytes=16e9),
}


def card_of(name: str) -> Card:
    """One of CARDS, or CPU: what this machine and its cgroup have free."""
    return Card(device=None, memory_bytes=available_memory()) if name == CPU else CARDS[name]
