"""Executes step plans: checks them, builds the batch, runs the model, samples."""

import os

# OpenMP reads this when torch is first imported, so it stands before any import of torch. A thread
# that waits for its mates would spin for milliseconds, and a step has a thousand such waits: with
# as many threads as cores, any other process on the machine makes each of them last a time slice.
# (Two threads, two busy cores: 2.5 s per decode step spinning, 0.5 s like this.) Much fewer, and it
# would sleep and be woken where its mates are only a little behind.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
