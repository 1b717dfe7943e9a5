"""What HF transformers answers, greedily, to a fixed set of prompts: the measure of our outputs."""
