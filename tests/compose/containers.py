"""What is in the containers, what they publish, and what their health checks say."""

from __future__ import annotations

import os
import re
from typing import Any

import yaml

from tests.compose.fleet import MODELS, ROOT, Failure, Fleet, say

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]

_SCHEDULER_NEEDS_NONE_OF = ("torch", "transformers", "triton", "safetensors", "executor_service")
_FIND_PACKAGES = "import importlib.util as u; print([n for n in {!r} if u.find_spec(n)])"
_TELL_TORCH = (
    "import shutil, torch; print(torch.__version__, torch.version.cuda, shutil.which('cc'))"
)

_TELL_MODELS = (
    "import os; print(sorted(os.listdir('/models')), os.statvfs('/models').f_flag & os.ST_RDONLY)"
)


def is_healthy(fleet: Fleet, service: str) -> bool:
    """Runs the service's health check, as the engine does now and then."""
    command = SERVICES[service]["healthcheck"]["test"]
    return fleet.attempt_in(service, *command[1:]).returncode == 0


def check_health(fleet: Fleet) -> None:
    for service in ("redis", "scheduler", "executor"):
        if not is_healthy(fleet, service):
            raise Failure(f"{service} is not healthy")
    say("redis, scheduler and executor are healthy by their own checks")


def check_images(fleet: Fleet) -> None:
    found = fleet.python_in("scheduler", _FIND_PACKAGES.format(_SCHEDULER_NEEDS_NONE_OF))
    if found != "[]":
        raise Failure(f"the scheduler's image has {found}")
    torch, cuda, compiler = fleet.python_in("executor", _TELL_TORCH).split()
    if cuda != "None":
        raise Failure(f"the executor's image has torch {torch} for CUDA {cuda}")
    if compiler == "None":
        raise Failure("the executor's image has no C compiler")
    say(f"the scheduler has no torch; the executor has {torch}, without CUDA, and {compiler}")


def check_models(fleet: Fleet) -> None:
    expected = f"{sorted(path.name for path in MODELS.iterdir())} {os.ST_RDONLY}"
    if (found := fleet.python_in("executor", _TELL_MODELS)) != expected:
        raise Failure(f"the executor's /models: {found}, not {expected}")
    say("the executor sees the folder of models, and cannot write it")


def check_ports(fleet: Fleet) -> None:
    if _published(fleet, "scheduler", 8000) != fleet.port:
        raise Failure("the scheduler's HTTP port is not published where OCTAVO_PORT says")
    for service, port in (("executor", 50051), ("redis", 6379)):
        if published := _published(fleet, service, port):
            raise Failure(f"{service} is published, at {published}")
    say("the scheduler's ports are published, no executor's is")


def _published(fleet: Fleet, service: str, port: int) -> int:
    """The port of the host; 0: none."""
    done = fleet.attempt("port", service, str(port))
    found = re.search(r"(\d+)\s*$", done.stdout)
    return int(found[1]) if found and not done.returncode else 0
