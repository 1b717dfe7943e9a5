"""Parent and child processes of one machine: status upwards, life downwards.

A parent and its child share two pipes. The child writes status events to one, a JSON object a line:

    {"event": "loading", "done": 3, "total": 30, "what": "weights"}
    {"event": "listening", "addresses": {"grpc": "127.0.0.1:1234"}}
    {"event": "ready"}
    {"event": "failed", "message": "..."}

The parent never writes to the other: its end closes when the parent is gone, even by SIGKILL, and
then the child ends itself. Both pipe ends of the child arrive as `--status-fd` and `--parent-fd`.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

log = logging.getLogger(__name__)

_MAX_EVENT_BYTES = 4000
"""Under PIPE_BUF, so that an event is written whole or not at all."""
_WRITE_PATIENCE_S = 1.0


class ChildProcess:
    """One child process. `events` has one reader; everything else may be called from any thread."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], status_fd: int, lifeline_fd: int
    ) -> None:
        self.name = name
        self._process = process
        self._status = open(status_fd, "rb")  # noqa: SIM115 - closed by `stop`
        self._lifeline = open(lifeline_fd, "wb")  # noqa: SIM115

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        output: int | IO[bytes] | None = None,
    ) -> ChildProcess:
        """Starts `argv` with the two fds appended as flags.

        `env` replaces the environment; `output` takes stdout and stderr, which are inherited
        otherwise. The child leads a process group of its own, so that Ctrl-C reaches it through
        its parent alone, in order.
        """
        status_read, status_write = os.pipe()
        life_read, life_write = os.pipe()
        try:
            process = subprocess.Popen(
                [*argv, "--status-fd", str(status_write), "--parent-fd", str(life_read)],
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(status_write, life_read),
                process_group=0,
            )
        except BaseException:
            os.close(status_read)
            os.close(life_write)
            raise
        finally:
            os.close(status_write)
            os.close(life_read)
        return cls(name, process, status_read, life_write)

    @property
    def pid(self) -> int:
        return self._process.pid

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the child's status events until it closes its end, at the latest by dying.

        Another call goes on where the last reader left off.
        """
        while line := self._next_line():
            try:
                event = json.loads(line)
            except ValueError:
                log.warning("unreadable status event", extra={"child": self.name})
                continue
            if isinstance(event, dict):
                yield event

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the child runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Like `poll`, after waiting for the end up to `timeout_s` (None: as long as it takes)."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Asks the child to end, and returns at once. No error if it has ended."""
        self._process.terminate()

    def stop(self, grace_s: float) -> int:
        """Ends the child: SIGTERM, `grace_s` to comply, SIGKILL. Returns its exit status."""
        self._process.terminate()
        status = self.wait(grace_s)
        if status is None:
            log.warning("killed after its grace", extra={"child": self.name, "pid": self.pid})
            self._process.kill()
            status = self._process.wait()
        self._lifeline.close()
        self._status.close()
        return status

    def _next_line(self) -> bytes:
        try:
            return self._status.readline()
        except ValueError:  # closed by `stop` on another thread
            return b""


class ProcessStatus:
    """The child's end of the status pipe. Without one (None) every report is silent.

    A parent that does not read cannot block the child: progress is dropped when the pipe is full.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        if fd is not None:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)

    def loading(self, done: int, total: int, what: str) -> None:
        """Progress of start-up: `done` of `total` units of `what`."""
        self._write({"event": "loading", "done": done, "total": total, "what": what}, patience_s=0)

    def listening(self, addresses: Mapping[str, str]) -> None:
        """Bound addresses by protocol: {"grpc": "127.0.0.1:1234"}."""
        self._write({"event": "listening", "addresses": dict(addresses)})

    def ready(self) -> None:
        self._write({"event": "ready"})

    def failed(self, message: str) -> None:
        """Says why the process is about to end."""
        self._write({"event": "failed", "message": message[:1000]})

    def _write(self, event: dict[str, object], *, patience_s: float = _WRITE_PATIENCE_S) -> None:
        if self._fd is None:
            return
        line = json.dumps(event).encode() + b"\n"
        if len(line) > _MAX_EVENT_BYTES:
            raise ValueError(f"status event of {len(line)} bytes")
        with self._lock:
            try:
                if select.select([], [self._fd], [], patience_s)[1]:
                    os.write(self._fd, line)
            except (BlockingIOError, BrokenPipeError):
                # Full, or the parent is gone; `die_with_parent` sees to the latter.
                return


def die_with_parent(fd: int | None, *, grace_s: float = 10.0) -> None:
    """Ends this process when its parent is gone: SIGTERM to itself, then a hard exit.

    `fd` is `--parent-fd`; None (no parent to watch) does nothing.
    """
    if fd is None:
        return
    os.set_inheritable(fd, False)
    threading.Thread(
        target=_watch_parent, args=(fd, grace_s), name="parent-watch", daemon=True
    ).start()


def _watch_parent(fd: int, grace_s: float) -> None:
    while os.read(fd, 64):
        pass
    log.warning("the parent process is gone; ending")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(1)
