from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import bench_core
from tests.bench.bench_core import CODEC_PARTS, CORE_PARTS, measure

SMALL = ["bench_core", "--num-sequences=4", "--num-steps=8"]


@pytest.mark.parametrize("depth", [1, 2])
def test_every_part_of_a_step_is_measured(depth: int) -> None:
    records = {r.metric: r.value for r in measure(4, depth, prompt_len=20, num_steps=12)}
    assert records.keys() == {"core", *CORE_PARTS, *CODEC_PARTS, "plan"}
    assert all(value > 0 for value in records.values())
    assert records["core"] > max(records[part] for part in CORE_PARTS)
    # 4 decodes: no tokens but the last, and hardly ever a block.
    assert records["plan"] < 300


def test_the_gate_decides_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "core.json"
    monkeypatch.setattr("sys.argv", [*SMALL, "--max-core-us=1e9", f"--json={path}"])
    assert bench_core.main() == 0
    metrics = {record["metric"] for record in json.loads(path.read_text())}
    assert {"core", "encode plan", "decode plan", "cpu"} <= metrics
    monkeypatch.setattr("sys.argv", [*SMALL, "--max-core-us=0.001"])
    assert bench_core.main() == 1
    assert "are allowed" in capsys.readouterr().err
