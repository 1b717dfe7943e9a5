"""A stack that lives as long as a `with` block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import OctavoError
from octavo.stack.config import StackConfig
from octavo.stack.report import Reporter
from octavo.stack.supervisor import Stack, StackAddresses


@contextmanager
def running_stack(config: StackConfig, reporter: Reporter) -> Iterator[StackAddresses]:
    """Yields once the stack is ready. Raises what ended it before that."""
    addresses: list[StackAddresses] = []
    failures: list[OctavoError] = []
    settled = threading.Event()

    def on_ready(where: StackAddresses) -> None:
        addresses.append(where)
        settled.set()

    def run() -> None:
        try:
            stack.run()
        except OctavoError as error:
            failures.append(error)
            if addresses:  # nobody waits for the failure any more
                reporter.line(str(error))
        finally:
            settled.set()

    stack = Stack(config, reporter=reporter, on_ready=on_ready)
    thread = threading.Thread(target=run, name="stack")
    thread.start()
    try:
        settled.wait()
        if not addresses:
            raise failures[0]
        yield addresses[0]
    finally:
        stack.request_stop()
        try:
            thread.join()
        except KeyboardInterrupt:
            stack.request_stop()
            thread.join()
            raise
