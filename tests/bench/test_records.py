from __future__ import annotations

import json
from pathlib import Path

from tests.bench.records import Record, write_records


def test_the_file_is_a_list_of_objects_with_the_agreed_keys(tmp_path: Path) -> None:
    ours = Record(case="W1", metric="output_rate", value=12.5, unit="tokens/s")
    peers = Record(
        case="W1", metric="output_rate", value=5.0, unit="tokens/s", peer="other", ratio=2.5
    )
    write_records(tmp_path / "x.json", [ours, peers])
    first, second = json.loads((tmp_path / "x.json").read_text())
    assert list(first) == ["case", "metric", "value", "unit", "peer", "ratio"]
    assert (first["peer"], first["ratio"]) == (None, None)
    assert (second["peer"], second["ratio"]) == ("other", 2.5)
