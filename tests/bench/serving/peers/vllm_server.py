"""vLLM's OpenAI server for CPUs, which takes and returns token ids as ours does."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.serving import sse_client
from tests.bench.serving.passes import ask_all
from tests.bench.serving.peers.contestant import Run, WeightClass
from tests.bench.serving.peers.server_process import ServerProcess, answers, free_port

PATIENCE_S = 900.0
"""Its first start compiles the model, which takes minutes; later ones find that in `cache`."""
CACHE_GB = 2
MAX_MODEL_LEN = 2048
MAX_NUM_BATCHED_TOKENS = 256
"""Of what was tried the best for both output rate and stalls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    name: str
    weight_class: WeightClass
    python: Path
    model: Path
    cache: Path
    """Where it keeps what it compiled."""

    @contextlib.contextmanager
    def started(self, threads: int) -> Iterator[Run]:
        address = f"127.0.0.1:{free_port()}"
        host, _, port = address.partition(":")
        argv: list[str | Path] = [self.python, "-I", "-m", "vllm.entrypoints.openai.api_server"]
        argv += ["--host", host, "--port", port, "--model", self.model, "--dtype", "float32"]
        argv += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "32"]
        argv += ["--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)]
        with ServerProcess([*argv, "--enable-prefix-caching"], self._environ(threads)) as process:
            process.wait(lambda: answers(address, "/health"), PATIENCE_S)
            run = functools.partial(sse_client.complete, address)
            yield functools.partial(ask_all, run)

    def _environ(self, threads: int) -> dict[str, str]:
        environ = {
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_CACHE_ROOT": str(self.cache),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        # Its own advice: Intel's OpenMP spins and binds better than the one it is linked with.
        for library in self.python.parent.parent.glob("lib/libiomp5.so"):
            environ["LD_PRELOAD"] = str(library)
        return environ
