"""Flags of the scheduler service."""

from __future__ import annotations

import pytest

from common.config import parse, secret_environ, to_argv
from common.errors import ConfigError
from scheduler_service.config import SchedulerConfig


def config_of(*argv: str, **environ: str) -> SchedulerConfig:
    return parse(SchedulerConfig, argv, prog="scheduler_service", environ=environ)


def test_the_flags_users_know_exist() -> None:
    config = config_of(
        "--served-model-name=m",
        "--host=0.0.0.0",
        "--port=8080",
        "--grpc-port=0",
        "--executors=a:1,b:2",
        "--max-model-len=100",
        "--max-num-seqs=8",
        "--max-num-batched-tokens=64",
        "--no-enable-prefix-caching",
        "--api-key=k",
        "--run-ahead-depth=1",
        "--metrics-compat=vllm",
    )
    assert config.executors == ("a:1", "b:2")
    assert not config.enable_prefix_caching
    assert config.max_model_len == 100


def test_the_environment_is_read() -> None:
    assert config_of(OCTAVO_EXECUTORS="a:1", OCTAVO_MAX_NUM_SEQS="7").max_num_seqs == 7


def test_names_and_addresses_of_executors_are_told_apart() -> None:
    config = config_of("--executors=a:1,dns:executor:50051,[::1]:2,dns:50051")
    assert config.executor_names == ("executor:50051",)
    assert config.executor_addresses == ("a:1", "[::1]:2", "dns:50051"), "dns can be a host"
    again = config_of(*to_argv(config, SchedulerConfig))
    assert again.executors == config.executors


def test_children_get_the_same_config() -> None:
    config = config_of("--executors=a:1", "--api-key=k", "--max-model-len=64", "--port=0")
    again = config_of(*to_argv(config, SchedulerConfig), **secret_environ(config, SchedulerConfig))
    assert again == config
    assert not any("--api-key" in argument for argument in to_argv(config, SchedulerConfig))


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        ("--port=70000", "--port"),
        ("--grpc-port=-1", "--grpc-port"),
        ("--grpc-port=8000", "--grpc-port"),
        ("--executors=nowhere", "--executors"),
        ("--executors=a:1,a:1", "--executors"),
        ("--executors=a:0", "--executors"),
        ("--executors=dns:a:http", "--executors"),
        ("--executors=dns::1", "--executors"),
        ("--executors=a:1,dns:a:1", "--executors"),
        ("--max-num-seqs=0", "--max-num-seqs"),
        ("--max-num-batched-tokens=0", "--max-num-batched-tokens"),
        ("--max-num-waiting=0", "--max-num-waiting"),
        ("--api-workers=0", "--api-workers"),
        ("--max-model-len=1", "--max-model-len"),
        ("--run-ahead-depth=3", "--run-ahead-depth"),
        ("--shutdown-timeout=-1", "--shutdown-timeout"),
        ("--no-token-timeout=0", "--no-token-timeout"),
        ("--request-timeout=0", "--request-timeout"),
        ("--registry=redis://nowhere", "--registry"),
        ("--metrics-compat=tgi", "--metrics-compat"),
        ("--scheduling-policy=random", "--scheduling-policy"),
        ("--role=engine", "--engine-socket"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_flag(argument: str, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag}"):
        config_of("--executors=a:1" if "executors" not in argument else argument, argument)


def test_a_wrong_policy_is_told_which_ones_there_are() -> None:
    with pytest.raises(ConfigError, match="^--scheduling-policy: 'random' is not one of fcfs"):
        config_of("--executors=a:1", "--scheduling-policy=random")
