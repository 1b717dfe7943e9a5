"""A whole Octavo where kernels are not to be had: torch serves."""

from __future__ import annotations

import httpx
import pytest

from tests.support.up_process import UpProcess


@pytest.mark.timeout(300)
def test_torch_answers_and_the_log_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_NATIVE", "0")
    body = {"model": "smollm2-135m", "prompt": "The capital of France is"}
    with UpProcess() as up:
        reply = httpx.post(
            f"{up.http}/v1/completions",
            json=body | {"max_tokens": 4, "temperature": 0},
            timeout=60,
        )
        assert reply.status_code == 200, reply.text
        assert "Paris" in reply.json()["choices"][0]["text"]
        assert up.errors.count("no native kernels") == 1
