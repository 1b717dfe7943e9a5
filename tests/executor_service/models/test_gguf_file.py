from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from gguf import GGUFReader

from common.errors import ModelError
from executor_service.models.gguf_file import GGUFFile
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_llama import tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    extra = {"test.nested": ["a", "é"], "test.floats": [1.5, -2.0], "test.flag": True}
    return write_gguf(tiny_model("llama"), tmp_path_factory.mktemp("gguf") / "m.gguf", fields=extra)


def test_fields_and_tensor_places_are_those_of_the_library(path: Path) -> None:
    file, reader = GGUFFile(path), GGUFReader(path)
    expected = {key: f.contents() for key, f in reader.fields.items() if "GGUF." not in key}
    assert file.fields == expected
    assert file.fields["test.nested"] == ["a", "é"]
    assert len(file.tensors) == len(reader.tensors)
    for tensor in reader.tensors:
        found = file.tensors[tensor.name]
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
        assert found.type_id == tensor.tensor_type
        assert file.data(found, tensor.n_bytes).tobytes() == tensor.data.tobytes()


def test_a_truncated_file_is_an_error_wherever_it_ends(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    header_ends = GGUFReader(path).data_offset
    for length in {*range(1, 60), *random.Random(1).choices(range(60, header_ends - 64), k=40)}:
        cut.write_bytes(data[:length])
        with pytest.raises(ModelError):
            GGUFFile(cut)
    cut.write_bytes(data[:-40])
    file = GGUFFile(cut)
    last = max(file.tensors.values(), key=lambda tensor: tensor.offset)
    with pytest.raises(ModelError, match="truncated"):
        file.data(last, len(data) - last.offset)


def test_damaged_headers_never_raise_anything_else(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    rng = random.Random(2)
    damaged = tmp_path / "damaged.gguf"
    for _ in range(100):
        changed = bytearray(data)
        for _ in range(3):
            changed[rng.randrange(len(changed) // 8)] = rng.randrange(256)
        damaged.write_bytes(changed)
        try:
            file = GGUFFile(damaged)
        except ModelError:
            continue
        assert file.fields


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot read"),
        (b"GG", "truncated"),
        (b"safetensors" * 9, "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1"),
    ],
)
def test_other_files_are_refused_saying_why(data: bytes, reason: str, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(data)
    with pytest.raises(ModelError, match=reason):
        GGUFFile(other)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent"):
        GGUFFile(tmp_path / "absent.gguf")
