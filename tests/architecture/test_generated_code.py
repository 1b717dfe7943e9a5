from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import proto

ROOT = Path(__file__).parents[2]
GENERATED = sorted(path.name for path in (ROOT / "proto").glob("*_pb2*"))


def test_proto_is_our_package() -> None:
    """PyPI's proto-plus installs a package of the same name."""
    assert proto.__file__ == str(ROOT / "proto" / "__init__.py")


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    protos = ["proto/executor.proto", "proto/inference.proto"]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "pyi")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *protos], cwd=ROOT, check=True
    )
    assert sorted(path.name for path in (tmp_path / "proto").iterdir()) == GENERATED
    for name in GENERATED:
        made, committed = tmp_path / "proto" / name, ROOT / "proto" / name
        assert made.read_text() == committed.read_text(), f"{name} is stale: run `make proto`"
