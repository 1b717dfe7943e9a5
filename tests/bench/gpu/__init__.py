"""`make bench-gpu`: the GPU path's kernels, decode attention, steps from the core to an executor.

Nothing here has been run on a GPU yet; every section runs in a tiny size on the CPU, under Triton's
interpreter, as a test.
"""
