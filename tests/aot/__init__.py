"""Compiles every Triton kernel for chips that are not here, and holds the result to a table.

`python -m tests.aot` checks; `python -m tests.aot --write` makes the table anew. Needs Triton and
no GPU: the compiler, assembler and disassembler come with it. Nothing is kept between runs, unless
TRITON_CACHE_DIR names a place.
"""
