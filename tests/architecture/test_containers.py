"""What docker-compose.yml and the Dockerfiles promise, read without a container engine."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config import parse, variable_of
from executor_service.config import ExecutorConfig
from scheduler_service.config import SchedulerConfig

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE)["services"]
OURS = {"scheduler": SchedulerConfig, "executor": ExecutorConfig, "executor-gpu": ExecutorConfig}
EXECUTORS = ("executor", "executor-gpu")
# What the file itself, an image or a parent process decides.
DECIDED = {"host", "port", "grpc_port", "registry", "executors", "device", "shutdown_timeout"}
DECIDED |= {"role", "engine_socket", "status_fd", "parent_fd"}
DOCKERFILES = ("scheduler_service/Dockerfile", "executor_service/Dockerfile")


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text.removesuffix("s"))


def flags(name: str) -> dict[str, str]:
    """Of a service, by variable."""
    return {variable_of(field): field.name for field in dataclasses.fields(OURS[name])}


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (ROOT / dockerfile).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_only_the_scheduler_publishes_ports() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"scheduler"}
    assert SERVICES["scheduler"]["ports"] == [
        "${OCTAVO_PORT:-8000}:8000",
        "${OCTAVO_GRPC_PORT:-50051}:50051",
    ]


def test_executors_can_be_scaled_and_need_no_gpu() -> None:
    for name, service in SERVICES.items():
        assert "container_name" not in service, name
        assert "runtime" not in service, name
        if "gpu" not in service.get("profiles", []):
            assert "deploy" not in service, name
    assert SERVICES["executor-gpu"]["profiles"] == ["gpu"]


def test_every_service_has_a_health_check_and_comes_back() -> None:
    for name, service in SERVICES.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped", name


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_given_longer_to_stop_than_it_takes_to_drain(name: str) -> None:
    service = SERVICES[name]
    drain_s = float(service["environment"]["OCTAVO_SHUTDOWN_TIMEOUT"])
    assert seconds(service["stop_grace_period"]) >= drain_s + 10.0


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_one_of_the_services_flags(name: str) -> None:
    given = {key for key in SERVICES[name]["environment"] if key.startswith("OCTAVO_")}
    assert given <= set(flags(name)), given - set(flags(name))


@pytest.mark.parametrize("name", OURS)
def test_every_flag_of_a_service_is_passed_to_it_under_its_own_name(name: str) -> None:
    """A flag that is missing here would be ignored without a word."""
    environment = SERVICES[name]["environment"]
    passed = {key for key in environment if re.match(rf"\$\{{{key}:-", environment[key])}
    expected = {key for key, field in flags(name).items() if field not in DECIDED}
    assert passed - {"HF_TOKEN", "HF_HUB_OFFLINE"} == expected


def test_every_octavo_variable_of_the_compose_file_is_a_flag() -> None:
    """Those that steer the file itself are a model folder, and the ports outside."""
    known = {key for name in OURS for key in flags(name)} | {"OCTAVO_MODELS"}
    named = set(re.findall(r"\bOCTAVO_[A-Z_]+\b", COMPOSE))
    assert len(named) > 30
    assert named <= known, named - known


def test_an_empty_variable_is_a_flag_that_is_not_given() -> None:
    for cls in (SchedulerConfig, ExecutorConfig):
        empty = {variable_of(field): "" for field in dataclasses.fields(cls)}
        assert parse(cls, [], prog="service", environ=empty) == cls()


@pytest.mark.parametrize("name", EXECUTORS)
def test_executors_see_a_folder_of_models_and_cannot_write_it(name: str) -> None:
    assert "${OCTAVO_MODELS:-./models}:/models:ro" in SERVICES[name]["volumes"]


def test_the_scheduler_finds_executors_of_both_kinds_by_one_name() -> None:
    config = SchedulerConfig(executors=(SERVICES["scheduler"]["environment"]["OCTAVO_EXECUTORS"],))
    assert config.executor_names == ("executor:50051",)
    assert "executor" in SERVICES["executor-gpu"]["networks"]["default"]["aliases"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_run_as_nobody_in_particular_from_what_the_context_holds(dockerfile: str) -> None:
    steps = instructions(dockerfile)
    assert [argument for keyword, argument in steps if keyword == "FROM"] == ["python:3.11-slim"]
    users = [argument for keyword, argument in steps if keyword == "USER"]
    assert users and users[-1].isdecimal() and int(users[-1]) > 0
    allowed = (ROOT / ".dockerignore").read_text().split()
    for sources in (argument.split()[:-1] for keyword, argument in steps if keyword == "COPY"):
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in allowed, source


def test_the_schedulers_image_gets_no_torch() -> None:
    steps = instructions("scheduler_service/Dockerfile")
    installed = " ".join(argument for keyword, argument in steps if keyword == "RUN")
    assert "project['dependencies']" in installed
    assert "optional-dependencies" not in installed
    assert "torch" not in installed
    assert "executor_service" not in " ".join(a for keyword, a in steps if keyword == "COPY")


def test_executors_get_the_cpu_build_of_torch_unless_told_otherwise() -> None:
    index = "https://download.pytorch.org/whl/cpu"
    arguments = SERVICES["executor"]["build"]["args"]
    assert arguments["TORCH_INDEX"] == f"${{TORCH_INDEX-{index}}}"
    steps = instructions("executor_service/Dockerfile")
    assert ("ARG", f"TORCH_INDEX={index}") in steps
    assert SERVICES["executor-gpu"]["build"]["args"]["TORCH_INDEX"] == "${TORCH_GPU_INDEX:-}"
