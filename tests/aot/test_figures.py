from __future__ import annotations

import dataclasses

from tests.aot.figures import Figures, problems

CLEAN = Figures(registers=64, spills=0, shared_bytes=40_000, mma=32, wgmma=0, tcgen05=0)
DECODE = "a model bfloat16: split_attention_kernel"
PREFILL = "a model bfloat16: prefill_attention_kernel"


def test_a_clean_kernel_has_no_problem() -> None:
    assert problems(DECODE, CLEAN, 80) == []
    assert problems(PREFILL, CLEAN, 80) == []
    assert problems(PREFILL, dataclasses.replace(CLEAN, mma=0, wgmma=12), 90) == []
    assert problems(PREFILL, dataclasses.replace(CLEAN, mma=0, tcgen05=12), 100) == []


def test_spills_and_too_much_shared_memory_are_problems() -> None:
    assert problems(DECODE, dataclasses.replace(CLEAN, spills=1), 80)
    large = dataclasses.replace(CLEAN, shared_bytes=200_000)
    assert problems(DECODE, large, 80)
    assert not problems(DECODE, large, 90)


def test_attention_in_16_bits_must_use_the_tensor_cores() -> None:
    plain = dataclasses.replace(CLEAN, mma=0)
    assert problems(DECODE, plain, 80)
    assert problems(DECODE, plain, 90)
    for arch in (90, 100):
        assert problems(PREFILL, CLEAN, arch), "a warp's instructions where there are faster ones"
    assert not problems(DECODE.replace("bfloat16", "float32"), plain, 90)
    assert not problems("a model bfloat16: rms_norm_kernel", plain, 90)
