"""The scheduler's core: a pure, deterministic state machine.

No clock (time is an argument), no I/O, no threads, no logging: the standard library and
`common.plan` only. The same calls in the same order give the same plans. What happened is told by
`Scheduler.take_events`.
"""
