from __future__ import annotations

import pytest

from octavo.__main__ import main


def test_fragmentation_prints_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--experiment", "fragmentation"]) == 0
    _, reserved, paged = capsys.readouterr().out.splitlines()
    assert reserved.endswith("48.7% wasted")
    assert paged.endswith("0.7% wasted")


def test_other_blocks_waste_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--block-size=256"]) == 0
    assert "10." in capsys.readouterr().out.splitlines()[2]
