from __future__ import annotations

import pytest

from octavo.__main__ import main

SEVEN_B = ["size", "--layers=32", "--kv-heads=8", "--head-dim=128", "--params=7e9"]


def test_it_prints_the_figures_of_a_7b_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEVEN_B, "--dtype=float16", "--length=4000"]) == 0
    out = capsys.readouterr().out
    for figure in ("128.0 KiB per token", "a100: 80.0 GiB", "156 FLOP/byte", "120 requests"):
        assert figure in out
    assert "0.045 ms of compute, 7.00 ms of reading weights" in out


def test_it_prints_the_figures_of_qwen2_7b(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEVEN_B, "--layers=28", "--kv-heads=4"]) == 0
    out = capsys.readouterr().out
    assert "56.0 KiB per token" in out
    assert "1,000,000 tokens: 53.4 GiB" in out


def test_it_prints_the_figures_of_llama_13b(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--layers=40", "--kv-heads=40", "--params=13e9", "--length=2048"]
    assert main([*SEVEN_B, *flags]) == 0
    assert "a request of 2,048 tokens: 1.56 GiB" in capsys.readouterr().out


def test_small_figures_are_told_in_small_units(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model=smollm2-135m", "--device=cpu", "--length=64", "--memory=1GiB"]
    assert main(["size", *flags]) == 0
    out = capsys.readouterr().out
    assert "465.8 MiB of KV hold" in out
    assert "no more of the 931.9 MiB beside the weights; --kv-cache-memory-bytes" in out
    assert "q4_1+q8_0, 92.1 MiB" in out
    assert "a request of 64 tokens: 1.41 MiB" in out


def test_a_running_servers_variables_have_no_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_DTYPE", "float32")
    assert main(SEVEN_B) == 0
    assert "bfloat16" in capsys.readouterr().out


def test_weights_that_do_not_fit_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEVEN_B, "--params=70e9"]) == 2
    assert "--memory" in capsys.readouterr().err


def test_it_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom octavo.__main__ import main\n"
        "main(['size', '--model=smollm2-135m'])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=-3)
