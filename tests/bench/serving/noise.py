"""Whether a sample can be trusted: what others did on the machine while it was taken.

foreign    CPU time of all processes that are not ours, as a share of wall time x cores
run delay  time that our threads were ready and had no core, as a share of wall time. Ours compete
           among themselves too (server, client), so this one is told and does not decide
sgemm      a calibration probe before and after: machines slow down without any process to blame
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.support.processes import descendants

MAX_FOREIGN = 0.04
MIN_PROBE = 0.85
"""Of the best probe of the whole run."""
PROBE_SIZE = 1024
PROBE_REPEATS = 7
SETTLE_S = 1.0
"""Before a probe. A server's threads go on spinning for a while after its last step, and a probe
beside them would take the server for a slow machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    foreign: float
    run_delay: float
    probe_gflops: float
    """The slower one of before and after."""

    def is_clean(self, best_probe_gflops: float) -> bool:
        return self.foreign <= MAX_FOREIGN and self.probe_gflops >= MIN_PROBE * best_probe_gflops


class NoiseWatch:
    """From construction to `stop`. Both wait `settle_s` and take a few probes of ten milliseconds;
    neither counts."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._probe = self._settled_gflops()
        self._pids = [os.getpid(), *descendants(os.getpid())]
        self._began_at = time.perf_counter()
        self._busy_s, self._own_s = machine_busy_s(), own_busy_s(self._pids)
        self._delay_s = run_delay_s(self._pids)

    def stop(self) -> Noise:
        wall_s = time.perf_counter() - self._began_at
        busy_s = machine_busy_s() - self._busy_s
        own_s = own_busy_s(self._pids) - self._own_s
        delay_s = run_delay_s(self._pids) - self._delay_s
        return Noise(
            foreign=max(0.0, busy_s - own_s) / (wall_s * len(os.sched_getaffinity(0))),
            run_delay=delay_s / wall_s,
            probe_gflops=min(self._probe, self._settled_gflops()),
        )

    def _settled_gflops(self) -> float:
        time.sleep(self._settle_s)
        return sgemm_gflops()


def sgemm_gflops() -> float:
    """Median of a few float32 products on the threads that torch is set to."""
    left = torch.rand(PROBE_SIZE, PROBE_SIZE)
    rates = []
    for _ in range(PROBE_REPEATS):
        began_at = time.perf_counter()
        torch.mm(left, left)
        rates.append(2 * PROBE_SIZE**3 / (time.perf_counter() - began_at) / 1e9)
    return statistics.median(rates)


def machine_busy_s(proc: Path = Path("/proc")) -> float:
    """CPU time of everybody: user, nice, system, interrupts and what the host took (steal)."""
    fields = (proc / "stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_busy_s(pids: Iterable[int], proc: Path = Path("/proc")) -> float:
    """CPU time of these processes; one that is gone counts nothing."""
    ticks = 0
    for pid in pids:
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run_delay_s(pids: Iterable[int], proc: Path = Path("/proc")) -> float:
    """Time that threads of these processes waited for a core."""
    delay_ns = 0
    for pid in pids:
        for path in (proc / str(pid) / "task").glob("*/schedstat"):
            try:
                delay_ns += int(path.read_text().split()[1])
            except OSError:
                continue
    return delay_ns * 1e-9
