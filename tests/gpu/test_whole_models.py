"""The heaviest: models of real sizes, made on the card, beside transformers."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the package triton is not installed")

from tests.executor_service.kernels.triton.test_random_models import *  # noqa: E402, F403
