from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from common.errors import ModelError
from executor_service.models.checkpoint import open_checkpoint
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_llama import save_tiny, tiny_model
from tests.support.tiny_tokenizer import CHAT_TEMPLATE


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_tiny(tiny_model("llama"), tmp_path / "model")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tiny_model("llama"), tmp_path / "model.gguf")


def test_the_fingerprint_is_of_contents_not_of_the_place(directory: Path) -> None:
    before = open_checkpoint(directory).fingerprint
    moved = directory.rename(directory.parent / "elsewhere")
    assert open_checkpoint(moved).fingerprint == before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_the_fingerprint_changes_with_each_file(directory: Path, name: str) -> None:
    before = open_checkpoint(directory).fingerprint
    path = directory / name
    if name == "model.safetensors":
        model = tiny_model("llama")
        with torch.no_grad():
            model.get_parameter("model.norm.weight")[3] += 1e-3
        model.save_pretrained(directory)
    else:
        path.write_bytes(path.read_bytes() + b"\n")
    assert open_checkpoint(directory).fingerprint != before


def test_a_gguf_file_gives_every_file_that_a_scheduler_needs(gguf: Path) -> None:
    files = open_checkpoint(gguf).files
    config = json.loads(files["config.json"])
    assert config["max_position_embeddings"] == 512
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert config["vocab_size"] == 320
    generation = json.loads(files["generation_config.json"])
    assert generation == {"bos_token_id": 1, "eos_token_id": [2]}
    assert files["chat_template.jinja"].decode() == CHAT_TEMPLATE
    assert json.loads(files["tokenizer.json"])["model"]["type"] == "BPE"


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({"tokenizer.ggml.eos_token_id": 0}, [0, 2]),
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.chat_template": None}, [0]),
        ({"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 9}, [2, 7, 9]),
        ({"tokenizer.ggml.eot_token_id": 2**32 - 1}, [2]),
    ],
)
def test_every_end_that_file_or_template_names_ends_an_answer(
    fields: dict[str, int | None], ends: list[int], tmp_path: Path
) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", fields=fields)
    generation = json.loads(open_checkpoint(path).files["generation_config.json"])
    assert generation["eos_token_id"] == ends


def test_a_directory_gives_its_files_and_the_template_of_its_tokenizer_config(
    directory: Path,
) -> None:
    files = open_checkpoint(directory).files
    assert files["config.json"] == (directory / "config.json").read_bytes()
    assert files["generation_config.json"] == (directory / "generation_config.json").read_bytes()
    assert files["chat_template.jinja"].decode() == CHAT_TEMPLATE
    (directory / "chat_template.jinja").write_text("own")
    (directory / "generation_config.json").unlink()
    files = open_checkpoint(directory).files
    assert files["chat_template.jinja"] == b"own"
    ends = json.loads(files["generation_config.json"])
    assert ends == {"bos_token_id": 1, "eos_token_id": 2}


def test_a_list_of_templates_gives_the_default_one(directory: Path) -> None:
    templates = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    config = json.dumps({"chat_template": templates})
    (directory / "tokenizer_config.json").write_text(config)
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    assert open_checkpoint(directory).files["chat_template.jinja"] == b"d"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("config.json", "{", "cannot read"),
        ("config.json", "[]", "not a JSON object"),
        ("model.safetensors", "nonsense", "cannot read"),
        ("model.safetensors.index.json", "{}", "not a safetensors index"),
        ("tokenizer_config.json", "{", "cannot read"),
    ],
)
def test_a_damaged_file_is_named(directory: Path, name: str, data: str, reason: str) -> None:
    (directory / name).write_text(data)
    with pytest.raises(ModelError, match=reason) as error:
        open_checkpoint(directory)
    assert name in str(error.value)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelError, match=name):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"general.architecture": "mamba"}, "'mamba'"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
        ({"llama.block_count": None}, "llama.block_count"),
    ],
)
def test_an_unsupported_gguf_model_is_refused_by_name(
    fields: dict[str, object], reason: str, tmp_path: Path
) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", fields=fields)
    with pytest.raises(ModelError, match=reason):
        open_checkpoint(path)


@pytest.mark.parametrize("value", ["</s>", 10**6])
@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom"])
def test_an_id_that_is_no_token_is_refused_by_name(
    name: str, value: object, tmp_path: Path
) -> None:
    fields = {f"tokenizer.ggml.{name}_token_id": value}
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", fields=fields)
    with pytest.raises(ModelError, match=rf"{name}_token_id .* is {value!r}, .* correct the field"):
        open_checkpoint(path)


@pytest.mark.parametrize("merges", [["no space"], ["nospace"], [1, 2]])
def test_merges_that_do_not_fit_the_tokens_are_refused(
    merges: list[object], tmp_path: Path
) -> None:
    fields = {"tokenizer.ggml.merges": merges}
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", fields=fields)
    with pytest.raises(ModelError, match="tokens and merges make no tokenizer"):
        open_checkpoint(path)
