"""From files to something that computes logits: sources, configs, weights, layers, tokenizer.

Knows nothing of plans or the wire. The heart is `llama.py`; everything else brings it weights.
"""
