"""`make bench-gpu` and `make test-gpu` on a machine that has what a GPU machine has, but no GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.plan import StepTimings
from tests.bench.gpu.rows import Rows
from tests.bench.gpu.serving import MEASURED, agreement, figures_of
from tests.bench.gpu.step_loop import Served

ROOT = Path(__file__).parents[2]
ONLY_GPU_PACKAGES = ROOT / "tests" / "support" / "only_gpu_packages"
HAS_TRITON = importlib.util.find_spec("triton") is not None
POOLS = ("float32", "fp8_e4m3", "int8", "int4")
SECTIONS = (
    "ceilings",
    ": rms_norm",
    "add_rms_norm",
    "rotary and KV write",
    "prefill attention",
    "mixed attention",
    "logit_adjust",
    "draw",
    "block copy",
    "merge of splits",
    "window of",
    *(f"KV write, {kind}" for kind in POOLS),
    *(f"heads of {size}, {kind}" for size in (16, 128) for kind in POOLS),
    "decode attention",
    "executor",
    "serving",
)


def run(*command: str, **environment: str) -> str:
    """In a process that sees no other packages; its output."""
    path = os.pathsep.join((str(ONLY_GPU_PACKAGES), str(ROOT)))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def test_other_packages_are_not_seen() -> None:
    names = ["google", "msgspec", "gguf", "fastapi", "redis", "hypothesis", "xdist", "psutil"]
    code = f"from importlib.util import find_spec; print(*map(find_spec, {names}))"
    assert set(run("-c", code).split()) == {"None"}


@pytest.mark.skipif(not HAS_TRITON, reason="the package triton is not installed")
def test_tests_of_a_gpu_are_collected_without_other_packages() -> None:
    command = ("-m", "pytest", "-q", "--collect-only", "-c", "tests/gpu/pytest.ini", "tests/gpu")
    collected = run(*command, "-p", "no:cacheprovider")
    for module in ("test_graphs.py", "test_kernels.py", "test_runner.py", "test_whole_models.py"):
        assert f"{module}::" in collected
    for model in ("135M", "1B"):
        assert model in collected


@pytest.mark.skipif(not HAS_TRITON, reason="the package triton is not installed")
def test_without_protobuf_serving_alone_is_left_out() -> None:
    code = (
        "from tests.bench.gpu.__main__ import Rows, measure_serving, tiny;"
        "measure_serving(tiny(), ['tiny'], Rows(None, 1.0))"
    )
    assert run("-c", code) == "serving was left out: No module named 'google'\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not HAS_TRITON, reason="the package triton is not installed")
def test_every_section_gives_its_figures_in_a_tiny_size(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    command = ("-W", "ignore", "-m", "tests.bench.gpu", "--tiny", "--json", str(path))
    printed = run(*command, TRITON_INTERPRET="1", ALSO_PACKAGES="protobuf")
    records = json.loads(path.read_text())
    cases = " | ".join(record["case"] for record in records)
    assert not [section for section in SECTIONS if section not in cases]
    assert all(record["value"] >= 0 for record in records)
    peers = {record["peer"] for record in records if record["peer"]}
    kernels = {"copy", "matmul", "two launches", "torch SDPA", "flex_attention"}
    assert peers == kernels | {"transformers"}
    assert all((record["peer"] is None) == (record["ratio"] is None) for record in records)
    agreed = [record["value"] for record in records if record["metric"] == "agreement"]
    assert agreed == [100.0], "float32 of both"
    assert "goal" in printed
    assert MEASURED in printed
    lines = printed.splitlines()
    assert all(any(record["case"] in line for line in lines) for record in records)


def test_a_figure_and_its_peer_are_two_records_of_one_form(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    rows = Rows(path, seconds=100.0)
    rows.add("a case", "time", 2.0, "us", goal="below 3")
    rows.compare("a case", "time", 2.0, "us", peer="other", theirs=4.0)
    ours, theirs = json.loads(path.read_text())
    assert ours == {
        "case": "a case",
        "metric": "time",
        "value": 2.0,
        "unit": "us",
        "peer": None,
        "ratio": None,
    }
    assert theirs == ours | {"value": 4.0, "peer": "other", "ratio": 0.5}


def test_the_gap_is_the_share_of_decode_steps_in_which_nothing_ran() -> None:
    steps = [StepTimings(gap_ns=1, forward_ns=8, sample_ns=1), StepTimings(forward_ns=10)]
    served = Served(
        began_at=1.0,
        arrivals={"a": [1.5, 2.0, 3.5], "b": [2.5, 3.0]},
        tokens={},
        decode_timings=steps,
        ended_at=3.5,
    )
    figures = figures_of(served)
    assert figures.gap == pytest.approx(0.05)
    assert figures.tokens_s == pytest.approx(2.0)
    assert figures.ttft_s == pytest.approx(1.0)
    assert figures.tpot_s == pytest.approx(0.75)


def test_tokens_agree_up_to_the_first_that_differs() -> None:
    assert agreement([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 9, 7, 8]]) == 5 / 8
