from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.serving import noise as noise_module
from tests.bench.serving.noise import (
    Noise,
    NoiseWatch,
    machine_busy_s,
    own_busy_s,
    run_delay_s,
)

HZ = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text("cpu  100 20 30 5000 400 1 2 3 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    for pid, user, system in ((7, 40, 2), (8, 5, 3)):
        folder = tmp_path / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        before = "S 1 1 1 0 -1 0 0 0 0 0"
        (folder / "stat").write_text(f"{pid} (a b) c) {before} {user} {system} 0 0 20\n")
        (folder / "task" / str(pid) / "schedstat").write_text("900 500000000 3\n")
    return tmp_path


def test_the_machine_is_busy_with_all_but_idling_and_waiting(proc: Path) -> None:
    assert machine_busy_s(proc) == pytest.approx((100 + 20 + 30 + 1 + 2 + 3) / HZ)


def test_own_time_is_summed_and_a_process_that_is_gone_counts_nothing(proc: Path) -> None:
    assert own_busy_s([7, 8, 9], proc) == pytest.approx((40 + 2 + 5 + 3) / HZ)


def test_run_delay_is_summed_over_threads(proc: Path) -> None:
    assert run_delay_s([7, 8, 9], proc) == pytest.approx(1.0)


def test_own_time_of_this_process_grows() -> None:
    before = own_busy_s([os.getpid()])
    while own_busy_s([os.getpid()]) == before:
        pass
    assert machine_busy_s() > 0


@pytest.mark.parametrize(
    ("foreign", "probe", "clean"),
    [(0.0, 300.0, True), (0.03, 260.0, True), (0.05, 300.0, False), (0.0, 250.0, False)],
)
def test_a_sample_is_clean_on_a_quiet_machine_at_its_usual_speed(
    foreign: float, probe: float, *, clean: bool
) -> None:
    noise = Noise(foreign=foreign, run_delay=1.0, probe_gflops=probe)
    assert noise.is_clean(300.0) == clean


def test_probes_come_after_a_pause_that_the_measured_time_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock that only pauses and the probe move."""
    now = [100.0]
    log: list[str] = []

    def pause(seconds: float) -> None:
        now[0] += seconds
        log.append(f"pause {seconds:g}")

    def probe() -> float:
        log.append("probe")
        return 300.0

    monkeypatch.setattr(noise_module.time, "sleep", pause)
    monkeypatch.setattr(noise_module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(noise_module, "sgemm_gflops", probe)
    busy = iter([50.0, 51.0])
    monkeypatch.setattr(noise_module, "machine_busy_s", lambda: next(busy))
    monkeypatch.setattr(noise_module, "own_busy_s", lambda pids: 0.0)
    monkeypatch.setattr(noise_module.os, "sched_getaffinity", lambda pid: {0, 1})
    watch = NoiseWatch(settle_s=8.0)
    now[0] += 2.0
    found = watch.stop()
    assert log == ["pause 8", "probe", "pause 8", "probe"]
    assert found.foreign == 0.25
