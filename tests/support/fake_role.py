"""Plays a process of the scheduler service for tests of its supervisor.

`python -m tests.support.fake_role BEHAVIOUR DIRECTORY flags...` writes its pid and flags to
DIRECTORY/<role>-<pid>, reports what the real role would, and ends on SIGTERM. BEHAVIOUR is a comma
list:

    api-fails        the API role reports failure at once
    engine-crashes   the engine ends as soon as it is ready, every time
    drains-slowly    the API role needs DIRECTORY/drained to exist before it ends
    stubborn         the engine ignores SIGTERM
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from common.config import parse
from common.process import ProcessStatus, die_with_parent
from scheduler_service.config import SchedulerConfig


def main() -> int:
    behaviour, directory, *flags = sys.argv[1:]
    config = parse(SchedulerConfig, flags, prog="fake_role")
    status = ProcessStatus(config.status_fd)
    signal.signal(signal.SIGTERM, lambda *_: None)
    # Before any other thread exists: one that does not block it would swallow a signal that comes
    # while nobody waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    die_with_parent(config.parent_fd, grace_s=0.5)
    note = {"role": config.role, "port": config.port, "api_key": config.api_key}
    return _Role(behaviour.split(","), Path(directory), config, status).run(note)


class _Role:
    def __init__(
        self,
        behaviour: list[str],
        directory: Path,
        config: SchedulerConfig,
        status: ProcessStatus,
    ) -> None:
        self._behaviour = behaviour
        self._directory = directory
        self._config = config
        self._status = status

    def run(self, note: dict[str, object]) -> int:
        path = self._directory / f"{self._config.role}-{os.getpid()}"
        path.write_text(json.dumps(note))
        if self._config.role == "api":
            if "api-fails" in self._behaviour:
                self._status.failed("scripted failure")
                return 3
            self._listen()
        else:
            self._status.listening({"engine": str(self._config.engine_socket)})
            self._status.ready()
            if "engine-crashes" in self._behaviour:
                return 4
        self._wait()
        return 0

    def _listen(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._config.api_workers > 1:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((self._config.host, self._config.port))
        self._socket.listen()
        port = self._socket.getsockname()[1]
        self._status.listening({"http": f"127.0.0.1:{port}", "grpc": "127.0.0.1:1"})
        self._status.ready()

    def _wait(self) -> None:
        while True:
            signal.sigwait({signal.SIGTERM})
            if self._config.role == "engine" and "stubborn" in self._behaviour:
                continue
            while "drains-slowly" in self._behaviour and self._config.role == "api":
                if (self._directory / "drained").exists():
                    break
                time.sleep(0.01)
            return


if __name__ == "__main__":
    sys.exit(main())
