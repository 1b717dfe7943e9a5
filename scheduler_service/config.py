"""What the scheduler service can be told. What it discovers (pool size, model) is not here.

One config serves every role of the service: the supervisor hands its own to the step loop and to
the API workers, so each sees the same flags.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.config import option
from common.errors import ConfigError
from common.log import FORMATS, LEVELS
from scheduler_service.core.policy import POLICIES

DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
"""Tokens of one step. A CPU computes some hundred to a thousand prompt tokens per second, so a
chunk of 512 holds up the decodes beside it for about half a second at worst, while the fixed cost
of a step (about 10 ms) stays near 1% of it. GPUs want 2048 and more."""
_DNS_PREFIX = "dns:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Flags of `python -m scheduler_service`. Times are in seconds."""

    served_model_name: str | None = option(
        None, help="name clients ask for; the executor's own name if unset"
    )
    host: str = option("127.0.0.1", help="address to listen on, for HTTP and gRPC")
    port: int = option(8000, help="HTTP port; 0 picks a free one")
    grpc_port: int = option(50051, help="gRPC port; 0 picks a free one")
    registry: str = option("static", help="where executors are found: static, the given addresses")
    executors: tuple[str, ...] = option(
        (),
        help="addresses of executors, host:port; dns:host:port stands for every address that the"
        " name has, looked up again every few seconds",
    )

    max_model_len: int | None = option(
        None, help="most tokens of a prompt with its outputs; auto: what model and pool allow"
    )
    max_num_seqs: int = option(256, help="most sequences in one step")
    max_num_batched_tokens: int = option(
        DEFAULT_MAX_NUM_BATCHED_TOKENS,
        help="most tokens in one step: more finish prompts sooner, fewer disturb decodes less",
    )
    max_decode_stall: float = option(
        2.0,
        help="while sequences decode, a step takes no more prompt tokens than make it so many times"
        " as long as if all sequences with a place in the batch decoded; inf: as many as"
        " --max-num-batched-tokens",
    )
    enable_prefix_caching: bool = option(True, help="reuse the KV of equal prefixes")
    max_num_waiting: int = option(
        1024, help="most sequences in the queue; beyond it requests are refused (429)"
    )
    scheduling_policy: str = option(
        "fcfs", help="admission order and preemption victim", choices=tuple(POLICIES)
    )
    run_ahead_depth: int = option(
        2, help="steps in flight: 2 plans a step while the one before it runs, 1 waits for each"
    )

    api_workers: int = option(1, help="processes that serve HTTP and gRPC")
    api_key: str | None = option(
        None, help="key that clients must send, for /metrics too, not for /health", secret=True
    )
    request_timeout: float | None = option(
        None, help="deadline of requests that name none, in seconds"
    )
    shutdown_timeout: float = option(
        30.0, help="seconds that running requests get to end after SIGTERM"
    )
    no_token_timeout: float = option(
        60.0, help="not ready when requests run and no token came for so many seconds"
    )
    metrics_compat: str | None = option(
        None, help="also publish metrics under the names of another server: vllm"
    )
    log_level: str = option("info", help="least severe records logged", choices=LEVELS)
    log_format: str = option("text", help="one record a line as", choices=FORMATS)
    check_invariants: bool = option(
        False, help="check every invariant of the core after each step (slow, for debugging)"
    )

    role: str = option(
        "supervisor",
        help="internal: which of the service's processes this is",
        choices=("supervisor", "engine", "api"),
    )
    engine_socket: str | None = option(None, help="internal: where the step loop listens")
    status_fd: int | None = option(None, help="internal: where status events are written")
    parent_fd: int | None = option(None, help="internal: closed when the parent is gone")

    def __post_init__(self) -> None:
        self._check_ports()
        self._check_limits()
        self._check_times()
        if self.registry != "static":
            raise ConfigError(f"--registry: {self.registry!r} is not known; use static")
        if self.metrics_compat not in (None, "vllm"):
            raise ConfigError(f"--metrics-compat: {self.metrics_compat!r} is not known; use vllm")
        self._check_executors()
        if self.role != "supervisor" and self.engine_socket is None:
            raise ConfigError(f"--engine-socket is required with --role {self.role}")

    @property
    def executor_addresses(self) -> tuple[str, ...]:
        """The executors that are listed one by one."""
        return tuple(entry for entry in self.executors if not _is_name(entry))

    @property
    def executor_names(self) -> tuple[str, ...]:
        """Those that DNS knows by a common name, host:port."""
        return tuple(e.removeprefix(_DNS_PREFIX) for e in self.executors if _is_name(e))

    def _check_executors(self) -> None:
        addresses = (*self.executor_addresses, *self.executor_names)
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ConfigError(f"--executors: {address!r} is not host:port")
        if len(set(addresses)) < len(addresses):
            raise ConfigError("--executors: an address is listed twice")

    def _check_ports(self) -> None:
        for flag, port in (("--port", self.port), ("--grpc-port", self.grpc_port)):
            if not 0 <= port <= 65535:
                raise ConfigError(f"{flag}: {port} is not a port (0 to 65535)")
        if self.port == self.grpc_port != 0:
            raise ConfigError(f"--grpc-port: {self.grpc_port} is also --port")

    def _check_limits(self) -> None:
        at_least_one = {
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
            "--max-num-waiting": self.max_num_waiting,
            "--api-workers": self.api_workers,
        }
        for flag, value in at_least_one.items():
            if value < 1:
                raise ConfigError(f"{flag}: {value} is below 1")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"--max-model-len: {self.max_model_len} holds no prompt and output")
        if not self.max_decode_stall >= 1.0:
            raise ConfigError(f"--max-decode-stall: {self.max_decode_stall} is below 1")
        if self.run_ahead_depth not in (1, 2):
            raise ConfigError(f"--run-ahead-depth: {self.run_ahead_depth} is neither 1 nor 2")

    def _check_times(self) -> None:
        if self.shutdown_timeout < 0:
            raise ConfigError(f"--shutdown-timeout: {self.shutdown_timeout} is negative")
        if self.no_token_timeout <= 0:
            raise ConfigError(f"--no-token-timeout: {self.no_token_timeout} is not above 0")
        if self.request_timeout is not None and self.request_timeout <= 0:
            raise ConfigError(f"--request-timeout: {self.request_timeout} is not above 0")


def _is_name(entry: str) -> bool:
    """`dns:50051` is a host of that name."""
    return entry.startswith(_DNS_PREFIX) and ":" in entry.removeprefix(_DNS_PREFIX)
