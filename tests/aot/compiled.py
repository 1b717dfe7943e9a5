"""Compiles one recorded launch for a chip and reads what the machine code uses."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.aot.figures import Figures
from tests.aot.launches import Launch

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_WARP_SIZE = 32
_ALIGNMENT = 16
_DTYPES = {
    "torch.float64": "fp64",
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.int8": "i8",
    "torch.uint8": "u8",
    "torch.int32": "i32",
    "torch.int64": "i64",
}


def compile_launch(launch: Launch, arch: int) -> Figures:
    """Raises what the compiler raises."""
    target = GPUTarget("cuda", arch, _WARP_SIZE)
    kernel = triton.compile(_source(launch), target=target, options=dict(launch.options))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "-res-usage", file.name)
        code = _run("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+)", usage)
    assert found, f"cuobjdump says nothing of registers: {usage}"
    return Figures(
        registers=int(found[1]),
        spills=_count(code, r"(LDL|STL)"),
        shared_bytes=kernel.metadata.shared,
        mma=_count(code, "HMMA"),
        wgmma=_count(code, "HGMMA"),
        tcgen05=_count(code, r"UTC\w*MMA"),
    )


def specialization(launch: Launch) -> tuple[dict[str, str], dict[str, Any], tuple[int, ...]]:
    """Types by argument, constants, and indexes of what 16 divides, by Triton's rules."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible: list[int] = []
    for index, param in enumerate(launch.kernel.params):
        value = launch.arguments[param.name]
        free = param.do_not_specialize
        is_one = isinstance(value, int) and value == 1
        if param.is_constexpr or value is None or (is_one and not free):
            signature[param.name] = "constexpr"
            constants[param.name] = value
        elif isinstance(value, Tensor):
            signature[param.name] = "*" + _DTYPES[str(value.dtype)]
            if value.data_ptr() % _ALIGNMENT == 0:
                divisible.append(index)
        elif isinstance(value, float):
            signature[param.name] = "fp32"
        else:
            signature[param.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % _ALIGNMENT == 0 and not free:
                divisible.append(index)
    return signature, constants, tuple(divisible)


def _source(launch: Launch) -> ASTSource:
    signature, constants, divisible = specialization(launch)
    attributes = {(index,): [["tt.divisibility", _ALIGNMENT]] for index in divisible}
    return ASTSource(launch.kernel, signature, constants, attributes)


def _run(tool: str, *args: str) -> str:
    done = subprocess.run([_TOOLS / tool, *args], capture_output=True, text=True, check=True)
    return done.stdout


def _count(code: str, instruction: str) -> int:
    """Instructions in a listing like `/*0010*/  @!P0 LDL.64 R4, [R1] ;`."""
    return len(re.findall(rf"\b{instruction}\b", code))
