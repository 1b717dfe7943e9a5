"""Who takes part, and where their files are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.serving.peers.contestant import Contestant, WeightClass
from tests.bench.serving.peers.llama_server import LlamaCpp
from tests.bench.serving.peers.octavo_up import OctavoUp
from tests.bench.serving.peers.openvino_pipeline import OpenVino
from tests.bench.serving.peers.transformers_static import TransformersStatic
from tests.bench.serving.peers.vllm_server import Vllm

QUANTIZED, FLOAT32 = WeightClass.QUANTIZED, WeightClass.FLOAT32


@dataclass(frozen=True, slots=True)
class PeersFolder:
    """A virtual environment for each peer, for they need versions that exclude each other."""

    root: Path

    def python(self, peer: str) -> Path:
        return self.root / peer / "bin" / "python"

    def llama_cpp(self, program: str) -> Path:
        return self.root / "llama-cpp" / "build" / "bin" / program

    def model(self, name: str) -> Path:
        return self.root / "models" / name


def ours(model: str, folder: PeersFolder) -> list[OctavoUp]:
    """The default first. Q8_0 is a file that llama.cpp's tools make: without them it is missing."""
    eight_bits = folder.model("Q8_0.gguf")
    return [
        OctavoUp(name="octavo", weight_class=QUANTIZED, model=model),
        OctavoUp(
            name="octavo int8",
            weight_class=QUANTIZED,
            model=model,
            flags=("--quantization=int8",),
        ),
        *(
            [OctavoUp(name="octavo Q8_0", weight_class=QUANTIZED, model=str(eight_bits))]
            if eight_bits.exists()
            else []
        ),
        OctavoUp(
            name="octavo float32", weight_class=FLOAT32, model=model, flags=("--dtype=float32",)
        ),
    ]


def peers(folder: PeersFolder, gguf: Path) -> list[Contestant]:
    float32_cache = ("--cache-type-k", "f32", "--cache-type-v", "f32")
    server = folder.llama_cpp("llama-server")
    return [
        LlamaCpp(name="llama.cpp Q4_1", weight_class=QUANTIZED, server=server, model=gguf),
        *(
            LlamaCpp(
                name=f"llama.cpp {kind}",
                weight_class=QUANTIZED,
                server=server,
                model=folder.model(f"{kind}.gguf"),
            )
            for kind in ("Q4_0", "Q8_0")
        ),
        LlamaCpp(
            name="llama.cpp float32",
            weight_class=FLOAT32,
            server=server,
            model=folder.model("F32.gguf"),
            flags=float32_cache,
        ),
        OpenVino(
            name="OpenVINO int8",
            weight_class=QUANTIZED,
            python=folder.python("openvino"),
            model=folder.model("openvino-int8"),
        ),
        OpenVino(
            name="OpenVINO float32",
            weight_class=FLOAT32,
            python=folder.python("openvino"),
            model=folder.model("openvino-float32"),
            properties={"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"},
        ),
        Vllm(
            name="vLLM float32",
            weight_class=FLOAT32,
            python=folder.python("vllm"),
            model=folder.model("float32"),
            cache=folder.root / "vllm" / "cache",
        ),
        TransformersStatic(name="transformers float32", weight_class=FLOAT32, gguf=gguf),
    ]


def chosen(peers: Sequence[Contestant], names: str) -> list[Contestant]:
    """No names: all."""
    beginnings = tuple(name.strip().lower() for name in names.split(",") if name.strip())
    return [peer for peer in peers if not beginnings or peer.name.lower().startswith(beginnings)]
