"""Kernels in C for the host's cores: built by the system's compiler at first use, then cached."""
