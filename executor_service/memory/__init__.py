"""The physical side of the KV cache: how much memory it may take, and the tensors themselves."""
