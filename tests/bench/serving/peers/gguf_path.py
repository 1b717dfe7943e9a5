"""`python -m tests.bench.serving.peers.gguf_path`: where the installed GGUF file is."""

from tests.integration.reference.hf_model import installed_gguf

if __name__ == "__main__":
    print(installed_gguf())
