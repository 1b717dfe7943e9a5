"""One compose project: its commands, and what its scheduler says from the host's side."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx

from octavo import Delta, SyncClient

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(__file__).resolve().parent
"""A folder that is there; what is in it matters to nobody."""
PROJECT = "octavo-test"
COMMAND_TIMEOUT_S = 1800.0
READY_TIMEOUT_S = 300.0
POLL_S = 0.5

_KILL_THE_EXECUTOR = """
import os, signal
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        arguments = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    except OSError:
        continue
    if arguments[1:3] == [b"-m", b"executor_service"]:
        os.kill(pid, signal.SIGKILL)
"""
_TELL_ADDRESS = "import socket; print(socket.gethostbyname(socket.gethostname()))"


class Failure(Exception):
    """The fleet did not do what it has to."""


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


class Fleet:
    """`command` is `docker compose` or what takes its arguments."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self.port, self._grpc_port = _free_port(), _free_port()
        self.address = f"127.0.0.1:{self._grpc_port}"
        self._environ = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "OCTAVO_PORT": f"127.0.0.1:{self.port}",
            "OCTAVO_GRPC_PORT": self.address,
            "OCTAVO_MODEL": "smollm2-135m",
            "OCTAVO_MODELS": str(MODELS),
            "OCTAVO_THREADS": "1",
            "OCTAVO_KV_CACHE_MEMORY_BYTES": "256MiB",
        }
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=120.0, trust_env=False
        )

    def compose(self, *arguments: str) -> str:
        """Runs one command to its end; its output is shown only if it fails."""
        say("$ " + " ".join(["compose", *arguments]))
        done = self.attempt(*arguments)
        if done.returncode:
            raise Failure(f"exit {done.returncode}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs one command that may fail, and says nothing."""
        return subprocess.run(
            [*self._command, *arguments],
            cwd=ROOT,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def attempt_in(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs `command` in the service's first container."""
        return self.attempt("exec", "-T", "--index", "1", service, *command)

    def python_in(self, service: str, source: str) -> str:
        """The last line that `source` prints in the service's first container."""
        done = self.attempt_in(service, "python", "-c", source)
        if done.returncode:
            raise Failure(f"python in {service}: exit {done.returncode}: {done.stderr[-2000:]}")
        return "".join(done.stdout.splitlines()[-1:])

    def show_logs(self) -> None:
        done = self.attempt("logs", "--tail", "40")
        say(f"the last log lines:\n{done.stdout}{done.stderr}")

    def first_executor(self) -> str:
        """The address of the service's first container."""
        return self.python_in("executor", _TELL_ADDRESS)

    def kill_first_executor(self) -> None:
        """SIGKILL for its process, from inside, as a crash would end it."""
        say("killing the first executor")
        # Fails or not: the container may end before the command in it does.
        self.attempt_in("executor", "python", "-c", _KILL_THE_EXECUTOR)

    # What the scheduler says

    def wait_ready(self) -> None:
        wait_until("the scheduler is ready", lambda: self.health("/ready") == 200)

    def health(self, path: str = "") -> int:
        """The status that /health answers with; 0: nobody answers."""
        try:
            return self.http.get(f"/health{path}").status_code
        except httpx.TransportError:
            return 0

    def stream(self, prompt: str, num_tokens: int) -> Iterator[str]:
        """Exactly so many tokens of a greedy completion, over HTTP."""
        body = {
            "model": "smollm2-135m",
            "prompt": prompt,
            "temperature": 0,
            "max_tokens": num_tokens,
            "min_tokens": num_tokens,
            "stream": True,
        }
        with self.http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise Failure(f"{response.status_code}: {response.read().decode()}")
            yield from _texts(response.iter_lines())

    def text(self, prompt: str, num_tokens: int) -> str:
        return "".join(self.stream(prompt, num_tokens))

    def grpc_stream(self, prompt: str, num_tokens: int) -> Iterator[str]:
        """As `stream`, over gRPC."""
        with SyncClient(self.address) as client:
            for chunk in client.generate(
                prompt, max_tokens=num_tokens, min_tokens=num_tokens, temperature=0.0
            ):
                if isinstance(chunk, Delta):
                    yield chunk.text

    def grpc_text(self, prompt: str, num_tokens: int) -> str:
        return "".join(self.grpc_stream(prompt, num_tokens))

    def metrics(self) -> Metrics:
        return Metrics(self.http.get("/metrics").raise_for_status().text)

    def ready_executors(self) -> set[str]:
        """Addresses of the executors that plans are sent to."""
        return {address for address, is_ready in self.metrics().ready.items() if is_ready}


class Metrics:
    """One page of /metrics."""

    def __init__(self, page: str) -> None:
        self._page = page

    def by_executor(self, name: str) -> Mapping[str, float]:
        found = re.findall(rf'^{name}{{executor="([^"]+):\d+"}} (\S+)$', self._page, re.MULTILINE)
        return {address: float(value) for address, value in found}

    def value(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self._page, re.MULTILINE)
        if found is None:
            raise Failure(f"/metrics has no {name}")
        return float(found[1])

    @property
    def ready(self) -> Mapping[str, float]:
        return self.by_executor("octavo_executor_ready")

    @property
    def steps(self) -> Mapping[str, float]:
        return self.by_executor("octavo_steps_total")


def wait_until(
    what: str, condition: Callable[[], bool], *, timeout_s: float = READY_TIMEOUT_S
) -> None:
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            raise Failure(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)
    say(f"{what}, after {time.monotonic() - started:.1f} s")


def _texts(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise Failure(f"the stream ends with {event}")
        for choice in event["choices"]:
            yield choice["text"]
    raise Failure("the stream broke off")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
