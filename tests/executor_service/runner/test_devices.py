"""Which device a runner is loaded on, and what is refused before any weight is read."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import ConfigError, ModelError
from executor_service.config import ExecutorConfig
from executor_service.kernels.kv_kind import KVKind
from executor_service.runner.load import load_runner

GPU_POOLS = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "int8", "int4")
HAS_TRITON = importlib.util.find_spec("triton") is not None


def load(**fields: Any) -> None:
    config = ExecutorConfig(**({"model": "/nowhere"} | fields))
    load_runner(config, lambda done, total, what: pytest.fail(what))


def test_the_cpu_does_not_compute_in_bfloat16() -> None:
    with pytest.raises(ConfigError, match="--dtype bfloat16"):
        load(dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "int4"])
def test_the_cpu_says_which_pools_it_has_and_where_the_others_are(dtype: str) -> None:
    wanted = f"--kv-cache-dtype {dtype}.*bfloat16.*float16.*int8.*--device cuda"
    with pytest.raises(ConfigError, match=wanted):
        load(model="smollm2-135m", kv_cache_dtype=dtype)


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_the_gpu_has_every_kind_of_pool() -> None:
    from executor_service.runner.cuda_device import kv_kind_of

    def kind(name: str, dtype: str = "auto") -> KVKind | None:
        return kv_kind_of(ExecutorConfig(device="cuda", kv_cache_dtype=name, dtype=dtype))

    names = {name: kind(name) for name in GPU_POOLS}
    assert names.pop("auto") is None
    assert names["fp8"] is names["fp8_e4m3"] is KVKind.FP8_E4M3
    assert {found.value for found in names.values() if found} == set(GPU_POOLS) - {"auto", "fp8"}
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype float32.*--dtype float32"):
        kind("float32")
    assert kind("float32", dtype="float32") is KVKind.FLOAT32


@pytest.mark.parametrize(
    "flags",
    [{"kv_cache_dtype": kind} for kind in ("bfloat16", "float16", "int8")]
    + [{"quantization": "q4_0"}],
)
@pytest.mark.parametrize(
    "environ", [{"OCTAVO_NATIVE": "0"}, {"PATH": "", "CC": ""}], ids=["turned off", "no compiler"]
)
def test_what_torch_alone_lacks_is_refused_before_the_model_is_looked_for(
    flags: dict[str, str],
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (environ | {"OCTAVO_CACHE_DIR": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    ((name, value),) = flags.items()
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} {value}.*native"):
        load(**flags)


def test_what_fails_to_compile_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.c").write_text("this is no C")
    monkeypatch.setattr("executor_service.kernels.native.build.SOURCES", tmp_path)
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OCTAVO_NATIVE", "")
    with pytest.raises(ConfigError, match="--kv-cache-dtype int8.*native"):
        load(model="smollm2-135m", kv_cache_dtype="int8")


def test_the_checkpoint_is_opened_before_kernels_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits(environ: object) -> None:
        pytest.fail("nobody asks for kernels yet")

    monkeypatch.setattr("executor_service.runner.cpu_device.load", waits)
    with pytest.raises(ModelError, match="/nowhere"):
        load()


@pytest.mark.skipif(HAS_TRITON, reason="triton is installed")
def test_a_gpu_needs_triton() -> None:
    with pytest.raises(ConfigError, match="triton"):
        load(device="cuda")


@pytest.mark.skipif(not HAS_TRITON or torch.cuda.is_available(), reason="no triton, or a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    with pytest.raises(ConfigError, match="no GPU"):
        load(device="cuda")


def test_triton_is_imported_by_kernels_alone() -> None:
    """Machines that serve from the CPU do not have it."""
    root = Path(__file__).parents[3]
    importers = [
        path.relative_to(root)
        for path in (root / "executor_service").rglob("*.py")
        if any(
            line.startswith(("import triton", "from triton"))
            for line in path.read_text().splitlines()
        )
    ]
    assert importers
    assert {path.parts[1] for path in importers} == {"kernels"}
