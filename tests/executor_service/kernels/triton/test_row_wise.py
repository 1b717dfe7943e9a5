"""Norm and activation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from executor_service.kernels import reference
from executor_service.kernels.rms_norm import add_rms_norm, rms_norm
from executor_service.kernels.silu_mul import silu_mul
from tests.support.cuda_backends import TOLERANCES

WIDTHS = [576, 3000]


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    return bool((found.double().cpu() - expected).abs().max() < 2 * TOLERANCES[dtype])


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_equals_the_reference(
    width: int, device: torch.device, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(13, width).to(dtype), torch.rand(width).to(dtype)
    found = rms_norm(x.to(device), weight.to(device), 1e-5)
    assert close(found, reference.rms_norm(x.double(), weight.double(), 1e-5), dtype)


def test_rms_norm_reads_heads_out_of_a_projection(device: torch.device, dtype: torch.dtype) -> None:
    x, weight = torch.randn(21, 7, 80).to(dtype), torch.rand(80).to(dtype)
    found = rms_norm(x.to(device)[:, 2:5], weight.to(device), 1e-5)
    assert found.is_contiguous()
    assert close(found, reference.rms_norm(x[:, 2:5].double(), weight.double(), 1e-5), dtype)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm_keeps_the_sum(width: int, device: torch.device, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, 13, width).to(dtype)
    weight = torch.rand(width).to(dtype)
    total = residual.to(device)
    total = total.clone()
    found = add_rms_norm(x.to(device), total, weight.to(device), 1e-5)
    normed, summed = reference.add_rms_norm(x.double(), residual.double(), weight.double(), 1e-5)
    assert close(total, summed, dtype)
    assert close(found, normed, dtype)


@pytest.mark.parametrize("width", [96, 3000])
def test_silu_mul_equals_the_reference(
    width: int, device: torch.device, dtype: torch.dtype
) -> None:
    gate_up = (torch.randn(9, 2 * width) * 3).to(dtype)
    found = silu_mul(gate_up.to(device))
    expected = reference.silu_mul(gate_up.double())
    error = (found.double().cpu() - expected).abs() / expected.abs().clamp(min=1)
    assert error.max() < TOLERANCES[dtype]
