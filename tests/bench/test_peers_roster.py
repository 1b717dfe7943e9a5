from __future__ import annotations

from pathlib import Path

from tests.bench.serving.peers import roster
from tests.bench.serving.peers.contestant import WeightClass
from tests.bench.serving.peers.roster import PeersFolder, chosen

FOLDER = PeersFolder(Path("/peers"))
OURS = roster.ours("smollm2-135m", FOLDER)
PEERS = roster.peers(FOLDER, Path("/model.gguf"))


def test_every_class_has_some_of_ours_and_several_peers() -> None:
    assert {own.weight_class for own in OURS} == set(WeightClass)
    for weight_class in WeightClass:
        assert sum(peer.weight_class == weight_class for peer in PEERS) > 1


def test_names_tell_them_apart() -> None:
    names = [contestant.name for contestant in [*OURS, *PEERS]]
    assert len(set(names)) == len(names)


def test_some_can_be_chosen_by_how_their_names_begin() -> None:
    assert chosen(PEERS, "") == PEERS
    picked = [peer.name for peer in chosen(PEERS, "llama.cpp q, vllm")]
    assert picked == ["llama.cpp Q4_1", "llama.cpp Q4_0", "llama.cpp Q8_0", "vLLM float32"]


def test_ours_takes_the_file_of_8_bits_when_it_was_made(tmp_path: Path) -> None:
    folder = PeersFolder(tmp_path)
    made = folder.model("Q8_0.gguf")
    made.parent.mkdir()
    made.touch()
    ours = roster.ours("smollm2-135m", folder)
    assert [own.name for own in ours] == [
        "octavo",
        "octavo int8",
        "octavo Q8_0",
        "octavo float32",
    ]
    assert ours[2].model == str(made)
    assert [own.name for own in OURS] == ["octavo", "octavo int8", "octavo float32"]
