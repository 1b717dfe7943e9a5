from __future__ import annotations

import dataclasses

from tests.aot.figures import Figures, problems

CLEAN = Figures(registers=64, spills=0, shared_bytes=40_000, mma=32, wgmma=0, tcgen05=0)
DECODES = "a model bfloat16: attention_kernel of decodes"
PROMPTS = "a model bfloat16: attention_kernel of prompts"
MIXED = "a model bfloat16: attention_kernel of mixed"


def test_a_clean_kernel_has_no_problem() -> None:
    assert problems(DECODES, CLEAN, 80) == []
    assert problems(PROMPTS, CLEAN, 80) == []
    assert problems(MIXED, CLEAN, 80) == []
    assert problems(DECODES, CLEAN, 90) == []
    assert problems(PROMPTS, dataclasses.replace(CLEAN, mma=0, wgmma=12), 90) == []
    assert problems(PROMPTS, dataclasses.replace(CLEAN, mma=0, tcgen05=12), 100) == []
    assert problems(MIXED, dataclasses.replace(CLEAN, wgmma=12), 90) == []
    assert problems(MIXED, dataclasses.replace(CLEAN, tcgen05=12), 100) == []


def test_so_many_spills_may_be_allowed() -> None:
    spilling = dataclasses.replace(CLEAN, spills=3)
    assert problems(DECODES, spilling, 80, most_spills=3) == []
    assert problems(DECODES, spilling, 80, most_spills=2) == ["3 spills"]


def test_spills_and_too_much_shared_memory_are_problems() -> None:
    assert problems(DECODES, dataclasses.replace(CLEAN, spills=1), 80)
    large = dataclasses.replace(CLEAN, shared_bytes=200_000)
    assert problems(DECODES, large, 80)
    assert not problems(DECODES, large, 90)


def test_attention_in_16_bits_must_use_the_tensor_cores() -> None:
    plain = dataclasses.replace(CLEAN, mma=0)
    for arch in (80, 90, 100):
        for name in (DECODES, PROMPTS, MIXED):
            assert problems(name, plain, arch)
    for arch in (90, 100):
        assert problems(PROMPTS, CLEAN, arch), "a warp's instructions where there are faster ones"
        assert problems(MIXED, CLEAN, arch), "likewise"
    lone = dataclasses.replace(CLEAN, mma=0, wgmma=12)
    assert problems(MIXED, lone, 90), "its decodes are no matter of warp groups"
    assert not problems(DECODES.replace("bfloat16", "float32"), plain, 90)
    assert not problems("a model bfloat16: rms_norm_kernel", plain, 90)
