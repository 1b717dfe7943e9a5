"""The Executor service: who may send plans, in which order they run, and what is told of it.

No tensors here: the runner is reached through `runner_port.StepRunner`. Everything but the runner's
own calls happens on the event loop's thread; the device has a thread of its own.
"""
