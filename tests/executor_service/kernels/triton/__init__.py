"""The Triton kernels against their references, on whatever device the fixtures name.

Here that is the CPU, under Triton's interpreter, which has to be chosen before triton is imported:
`tests/executor_service/kernels/test_triton.py` runs this folder in a process of its own.
`tests/gpu` runs the same tests on a GPU.
"""
