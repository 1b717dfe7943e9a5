"""Measures the GPU path: kernels, decode attention, serving. `make bench-gpu`.

Nothing here has been run on a GPU yet; every section runs in a tiny size on the CPU, under Triton's
interpreter, as a test.
"""
