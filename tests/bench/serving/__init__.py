"""Our server over HTTP against transformers' `generate()`, in one run: `make bench`.

Both get the same token ids, dtype and number of threads, and take turns, so that a machine that
slows down slows both. What is compared is greedy decoding to a fixed length: no end of text, no
tokenizing.
"""
