"""A runner that is run ahead of, whose decodes replay captured graphs, against the CPU's; and what
sizes its pool."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the package triton is not installed")

from tests.executor_service.kernels.triton.test_run_ahead import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_trial_run import *  # noqa: E402, F403
