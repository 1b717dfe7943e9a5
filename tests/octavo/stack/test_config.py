from __future__ import annotations

import dataclasses
import os

import pytest

from common import config as flags
from common.errors import ConfigError
from executor_service.config import ExecutorConfig
from octavo.commands.up import make_parser
from octavo.stack import config
from octavo.stack.command_lines import CommandLines
from octavo.stack.config import StackConfig
from scheduler_service.config import SchedulerConfig


def stack_of(*argv: str, **environ: str) -> StackConfig:
    return config.from_namespace(make_parser().parse_args(list(argv)), environ)


def executor_of(stack: StackConfig, index: int = 0, port: int = 0) -> ExecutorConfig:
    argv = CommandLines(stack).executor(index, port)
    return flags.parse(ExecutorConfig, argv[3:], prog="executor", environ={})


def scheduler_of(stack: StackConfig) -> SchedulerConfig:
    argv = CommandLines(stack).scheduler(["127.0.0.1:7"], 1, 2)
    return flags.parse(SchedulerConfig, argv[3:], prog="scheduler", environ={})


def test_every_flag_of_both_services_reaches_its_process() -> None:
    """Each is given an unusual value; the child's own parser has to find it again."""
    for cls, child in ((ExecutorConfig, executor_of), (SchedulerConfig, scheduler_of)):
        for field in dataclasses.fields(cls):
            if field.name in {*config.INTERNAL_FIELDS, "host", "port", "grpc_port", "registry"}:
                continue
            if field.metadata["secret"]:
                continue
            argv, expected = unusual(field)
            assert getattr(child(stack_of(*argv)), field.name) == expected, field.name


def unusual(field: dataclasses.Field[object]) -> tuple[list[str], object]:
    """A flag with a value that is not the default."""
    flag = flags.flag_of(field)
    if field.name == "metrics_compat":
        return [f"{flag}=vllm"], "vllm"
    if field.type == "bool":
        return [flag.replace("--", "--no-", 1)] if field.default else [flag], not field.default
    if field.name == "dtype":
        return [f"{flag}=float32"], "float32"
    if field.name == "kv_cache_dtype":
        return [f"{flag}=int8"], "int8"
    if field.name == "quantization":
        return [f"{flag}=none"], "none"
    if field.metadata["choices"]:
        value = field.metadata["choices"][-1]
        return [f"{flag}={value}"], value
    if "int" in str(field.type):
        value = 1 if field.name == "run_ahead_depth" else 3
        return [f"{flag}={value}"], value
    if field.name == "max_decode_stall":
        return [f"{flag}=2.5"], 2.5
    if "float" in str(field.type):
        return [f"{flag}=0.25"], 0.25
    return [f"{flag}=word"], "word"


def test_executors_keep_memory_for_the_schedulers_tokens_of_a_step() -> None:
    stack = stack_of()
    assert stack.executor.max_num_batched_tokens == SchedulerConfig().max_num_batched_tokens
    assert stack.scheduler.max_num_batched_tokens == SchedulerConfig().max_num_batched_tokens
    stack = stack_of("--max-num-batched-tokens=96")
    assert executor_of(stack).max_num_batched_tokens == 96
    assert scheduler_of(stack).max_num_batched_tokens == 96


def test_the_environment_speaks_where_no_flag_does() -> None:
    stack = stack_of("--max-num-seqs=5", OCTAVO_MAX_NUM_SEQS="6", OCTAVO_NUM_EXECUTORS="2")
    assert executor_of(stack).max_num_seqs == scheduler_of(stack).max_num_seqs == 5
    assert stack.num_executors == 2
    assert scheduler_of(stack_of(OCTAVO_MAX_NUM_SEQS="6")).max_num_seqs == 6


def test_the_public_address_is_the_schedulers_alone() -> None:
    stack = stack_of("--host=0.0.0.0", "--port=8123", OCTAVO_PORT="9")
    assert (stack.scheduler.host, stack.scheduler.port) == ("0.0.0.0", 8123)
    assert (executor_of(stack).host, executor_of(stack).port) == ("127.0.0.1", 0)


def test_a_child_started_again_gets_its_old_port_and_a_metrics_port_of_its_own() -> None:
    stack = stack_of("--metrics-port=9000", "--num-executors=2")
    executor = executor_of(stack, index=1, port=7777)
    assert (executor.port, executor.metrics_port) == (7777, 9001)


def test_threads_are_the_cores_shared_among_executors() -> None:
    cores = len(os.sched_getaffinity(0))
    assert executor_of(stack_of()).threads == cores
    assert executor_of(stack_of(f"--num-executors={cores}")).threads == 1
    assert executor_of(stack_of(f"--num-executors={4 * cores}")).threads == 1
    assert executor_of(stack_of("--threads=7")).threads == 7


def test_an_api_key_travels_in_the_environment_and_no_other_flag_does() -> None:
    stack = stack_of("--api-key=secret")
    lines = CommandLines(stack)
    assert "secret" not in " ".join([*lines.scheduler(["a:1"], 0, 0), *lines.executor(0, 0)])
    given = {"OCTAVO_PORT": "1", "OCTAVO_NATIVE": "avx2", "OCTAVO_CACHE_DIR": "/c"}
    environ = lines.environ({**given, "HOME": "/h", "PYTHONPATH": "/elsewhere"})
    assert environ["OCTAVO_API_KEY"] == "secret"
    assert "OCTAVO_PORT" not in environ
    assert (environ["OCTAVO_NATIVE"], environ["OCTAVO_CACHE_DIR"]) == ("avx2", "/c")
    assert environ["HOME"] == "/h"
    assert environ["PYTHONPATH"].endswith(f"{os.pathsep}/elsewhere")


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["--num-executors=0"], "--num-executors"),
        (["--max-num-seqs=x"], "--max-num-seqs"),
        (["--executors=a:1"], "--executors"),
        (["--role=api"], "--role"),
        (["--status-fd=3"], "--status-fd"),
        (["--block-size=0"], "--block-size"),
        (["--dtype=bfloat16"], "--dtype bfloat16: .*--device cuda"),
        (["--kv-cache-dtype=fp8"], "--kv-cache-dtype fp8: .*--device cuda"),
    ],
)
def test_a_wrong_flag_is_named_before_anything_starts(argv: list[str], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        stack_of(*argv)
