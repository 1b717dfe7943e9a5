"""Octavo against other servers in one run: `make bench PEERS=1`.

All get the same token ids, the same number of threads, temperature 0 and answers of a fixed length,
over HTTP where a peer has a server. One runs at a time, started for each repeat, so that no repeat
finds prompts of an earlier one and no idle server takes a core; who goes first changes.

A class holds those whose weights can be compared: our default, which computes with a GGUF file's
quantized weights, and our 8-bit kinds with quantized peers; `--dtype float32` with float32 peers.
"""
