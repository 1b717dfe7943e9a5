"""The executor as a process: `shadow_executor_server` has the real app, service and signals."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.codec import PlanEncoder
from common.errors import ConfigError
from common.protocol import PROTOCOL_VERSION
from executor_service.app import EXIT_CONFIG, EXIT_FAULT, _load_model
from executor_service.config import ExecutorConfig
from proto import executor_pb2, executor_pb2_grpc
from tests.common.histories import History
from tests.executor_service.rpc.harness import Script
from tests.support.executor_process import PATIENCE_S, ExecutorProcess, shadow


def hello(channel: grpc.Channel) -> executor_pb2.HelloReply:
    request = executor_pb2.HelloRequest(scheduler_id="a", protocol_version=PROTOCOL_VERSION)
    return executor_pb2_grpc.ExecutorStub(channel).Hello(request, timeout=PATIENCE_S)


def health_of(channel: grpc.Channel) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status)


def prompt_message(reply: executor_pb2.HelloReply) -> executor_pb2.StepMessage:
    script = Script(History(1, max_live=1).add(num_tokens=20))
    encoder = PlanEncoder(reply.max_rows)
    return encoder.encode(script.prompt(), incarnation=reply.incarnation, epoch=reply.epoch)


def test_progress_listening_and_ready_are_reported() -> None:
    with shadow() as executor:
        kinds = [event["event"] for event in executor.seen]
        assert kinds[0] == "listening"
        assert kinds[-1] == "ready"
        assert executor.seen[-2] == {
            "event": "loading",
            "done": 10,
            "total": 10,
            "what": "shadow weights",
        }
        with executor.channel() as channel:
            assert health_of(channel) == health_pb2.HealthCheckResponse.SERVING


def test_while_loading_the_port_is_open_and_says_so() -> None:
    with (
        shadow("--load-ms=60000", until="listening") as executor,
        executor.channel() as channel,
    ):
        assert health_of(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError, match="loading") as caught:
            hello(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        begin = time.monotonic()
        assert executor.process.stop(grace_s=PATIENCE_S) == 0
        assert time.monotonic() - begin < 10


def test_sigterm_without_a_stream_ends_at_once() -> None:
    with shadow() as executor:
        begin = time.monotonic()
        assert executor.process.stop(grace_s=PATIENCE_S) == 0
        assert time.monotonic() - begin < 5


def test_sigterm_ends_a_quiet_stream_and_the_owner_sees_unavailable() -> None:
    with shadow() as executor, executor.channel() as channel:
        reply = hello(channel)
        requests: Iterator[executor_pb2.StepMessage] = endless(prompt_message(reply))
        results = executor_pb2_grpc.ExecutorStub(channel).Execute(requests)
        assert next(results).step_id == 1
        executor.process.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            next(results)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert executor.process.wait(PATIENCE_S) == 0


def test_sigterm_lets_a_running_step_end_first() -> None:
    with shadow("--latency-ms=1500") as executor, executor.channel() as channel:
        reply = hello(channel)
        results = executor_pb2_grpc.ExecutorStub(channel).Execute(endless(prompt_message(reply)))
        executor_pb2_grpc.ExecutorStub(channel).GetInfo(executor_pb2.GetInfoRequest())
        wait_until_running(channel)
        executor.process.terminate()
        assert next(results).step_id == 1
        assert executor.process.wait(PATIENCE_S) == 0


def test_second_sigterm_ends_a_hanging_executor_at_once() -> None:
    with shadow("--hang-after-steps=0") as executor, executor.channel() as channel:
        reply = hello(channel)
        _results = executor_pb2_grpc.ExecutorStub(channel).Execute(endless(prompt_message(reply)))
        wait_until_running(channel)
        executor.process.terminate()
        assert executor.process.wait(1.5) is None
        begin = time.monotonic()
        executor.process.terminate()
        assert executor.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - begin < 3


def test_device_fault_ends_the_process_with_a_reason() -> None:
    with shadow("--die-after-steps=0") as executor, executor.channel() as channel:
        reply = hello(channel)
        results = executor_pb2_grpc.ExecutorStub(channel).Execute(endless(prompt_message(reply)))
        with pytest.raises(grpc.RpcError):
            next(results)
        assert executor.process.wait(PATIENCE_S) == EXIT_FAULT
        assert "scripted" in executor.wait_for("failed")["message"]


def test_wrong_plan_ends_a_shadow_executor() -> None:
    """The judge of schedulers: KV that is not there is never read in silence."""
    with shadow() as executor, executor.channel() as channel:
        reply = hello(channel)
        message = prompt_message(reply)
        message.plan.starts = b"\x04\0\0\0"
        message.plan.lengths = b"\x10\0\0\0"
        results = executor_pb2_grpc.ExecutorStub(channel).Execute(endless(message))
        with pytest.raises(grpc.RpcError):
            next(results)
        assert executor.process.wait(PATIENCE_S) == EXIT_FAULT
        assert "reads block" in executor.wait_for("failed")["message"]


def test_port_in_use_ends_the_process_with_the_flags_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        executor = ExecutorProcess(f"--port={taken.getsockname()[1]}")
        assert "--port" in executor.wait_for("failed")["message"]
        assert executor.process.wait(PATIENCE_S) == EXIT_CONFIG
        executor.process.stop(grace_s=0)


def test_wrong_flag_ends_the_process_with_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    executor = ExecutorProcess("--block-size=0", module="executor_service")
    assert executor.process.wait(PATIENCE_S) == EXIT_CONFIG
    executor.process.stop(grace_s=0)
    assert "--block-size must be at least 1" in capfd.readouterr().err


def test_a_wrong_path_is_told_before_torch_is_imported() -> None:
    script = """
import sys
from executor_service.app import _load_model
from executor_service.config import ExecutorConfig
try:
    _load_model(ExecutorConfig(model="/absent"), print)
except Exception as error:
    print(error)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("--model /absent: no such file or directory\n", 0)


def test_metrics_page_counts_steps() -> None:
    with shadow("--metrics-port=0") as executor, executor.channel() as channel:
        reply = hello(channel)
        results = executor_pb2_grpc.ExecutorStub(channel).Execute(endless(prompt_message(reply)))
        next(results)
        url = f"http://{executor.addresses['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            text = page.read().decode()
        results.cancel()
    lines = text.splitlines()
    assert "octavo_executor_steps_total 1.0" in lines
    assert "octavo_executor_computed_tokens_total 20.0" in lines
    assert "octavo_executor_step_seconds_count 1.0" in lines
    assert "octavo_executor_epoch 1.0" in lines


def endless(*messages: executor_pb2.StepMessage) -> Iterator[executor_pb2.StepMessage]:
    """Messages, then an open end until the process is gone."""
    yield from messages
    never = threading.Event()
    never.wait(PATIENCE_S)


def wait_until_running(channel: grpc.Channel) -> None:
    stub = executor_pb2_grpc.ExecutorStub(channel)
    deadline = time.monotonic() + PATIENCE_S
    while stub.GetInfo(executor_pb2.GetInfoRequest()).num_rows == 0:
        assert time.monotonic() < deadline


def test_an_executor_without_its_packages_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "executor_service.runner.load", raising=False)
    monkeypatch.setenv("OCTAVO_NATIVE", "0")
    with pytest.raises(ConfigError, match=r"torch: pip install 'octavo\[executor\]'"):
        _load_model(ExecutorConfig(), lambda *_: None)
