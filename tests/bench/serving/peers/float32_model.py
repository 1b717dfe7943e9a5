"""`python -m tests.bench.serving.peers.float32_model FOLDER`: the GGUF file as safetensors.

In float32, with its tokenizer, for peers that read Hugging Face folders.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoTokenizer

from tests.integration.reference.hf_model import installed_gguf, load_float32


def main() -> None:
    folder = Path(sys.argv[1])
    gguf = installed_gguf()
    load_float32(gguf).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
