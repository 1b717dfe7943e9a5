"""Up to which position a model of the family is the one published, from its HF config.json.

Without torch, as the memory of a model is estimated where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def known_model_type(config: Mapping[str, Any]) -> str | None:
    """None if the model is not of the family."""
    names = config.get("architectures") or []
    return next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)


def exact_positions(config: Mapping[str, Any], model_type: str | None, positions: int) -> int:
    """A window as long as the sequence sees all of it, so such lengths need no window."""
    window = config.get("sliding_window")
    used = model_type == "mistral" or config.get("use_sliding_window", False)
    if model_type in ("mistral", "qwen2", "qwen3") and used and window:
        return min(positions, int(window))
    return positions


def window_of(config: Mapping[str, Any], model_type: str | None, positions: int) -> int | None:
    """Mistral's; Qwen has windows in some layers alone."""
    window = config.get("sliding_window") if model_type == "mistral" else None
    return int(window) if window and window < positions else None


def windowed_positions(config: Mapping[str, Any], model_type: str | None, positions: int) -> int:
    if window_of(config, model_type, positions) is not None:
        return positions
    return exact_positions(config, model_type, positions)
