"""A child process for test_process.py: python -m tests.common.process_child MODE --status-fd ..."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

from common.process import ChildProcess, ProcessStatus, die_with_parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--status-fd", type=int)
    parser.add_argument("--parent-fd", type=int)
    arguments = parser.parse_args()
    status = ProcessStatus(arguments.status_fd)
    stop = threading.Event()
    if arguments.mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    die_with_parent(arguments.parent_fd, grace_s=0.5)
    if arguments.mode == "parent":
        child = ChildProcess.start("grandchild", command("stubborn"))
        for event in child.events():
            if event["event"] == "ready":
                status.listening({"pid": str(child.pid)})
    if arguments.mode == "flood":
        for done in range(100_000):
            status.loading(done, 100_000, "x" * 100)
        sys.exit(5)
    status.loading(1, 2, "weights")
    status.listening({"grpc": "127.0.0.1:1", "fds": ",".join(os.listdir("/proc/self/fd"))})
    status.ready()
    if arguments.mode == "fails":
        status.failed("no such model " + "y" * 10_000)
        sys.exit(3)
    while not stop.wait(0.05):
        pass


def command(mode: str) -> list[str]:
    return [sys.executable, "-m", "tests.common.process_child", mode]


if __name__ == "__main__":
    main()
