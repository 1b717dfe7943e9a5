"""Every test of the kernels under the interpreter, with this folder's device and dtypes.

It includes a small model in float32 against transformers.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the package triton is not installed")

from tests.executor_service.kernels.triton.test_attention import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_block_copy import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_decode_buffers import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_model import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_quantized_attention import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_rotary_kv_write import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_row_wise import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_sampling import *  # noqa: E402, F403
from tests.executor_service.kernels.triton.test_windows import *  # noqa: E402, F403
