"""What README.md and CONTRIBUTING.md name exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.routing import Route

from octavo.__main__ import COMMANDS
from octavo.commands.up import make_parser
from proto import inference_pb2
from scheduler_service.api.http.app import build_app
from scheduler_service.api.service import Service
from scheduler_service.config import SchedulerConfig

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def test_every_file_of_the_map_exists() -> None:
    rows = [line for line in README.split("## Where is what")[1].splitlines() if "| `" in line]
    assert len(rows) > 15
    for row in rows:
        folder = Path()
        for name in re.findall(r"`([^`]+)`", row.split("|")[2]):
            # Later names of a row may leave out the folder of the first.
            path = Path(name) if "/" in name else folder / name
            assert (ROOT / path).exists(), path
            folder = path.parent


def test_every_flag_of_the_table_is_one_of_up() -> None:
    rows = [line for line in README.split("### Flags")[1].splitlines() if line.startswith("| `--")]
    known = {flag for action in make_parser()._actions for flag in action.option_strings}
    flags = {flag for row in rows for flag in re.findall(r"--[a-z-]+", row.split("|")[1])}
    assert len(flags) > 10
    assert flags <= known


def test_every_command_line_names_a_command_that_exists() -> None:
    lines = re.findall(r"^\.venv/bin/python -m octavo (.*)$", README, flags=re.MULTILINE)
    assert {shlex.split(line)[0] for line in lines} <= set(COMMANDS)
    assert lines


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^make ([a-z-]+)", README, re.M))))
def test_every_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def test_the_list_of_http_routes_is_the_apps() -> None:
    app = build_app(cast(Service, SimpleNamespace(config=SchedulerConfig())))
    routes = [route for route in app.routes if isinstance(route, Route)]
    served = {
        f"{method} {route.path_format.replace('{name:path}', '{name}')}"
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == set(re.findall(r"`((?:GET|POST) /[^`]*)`", README))


def test_the_list_of_grpc_methods_is_the_services() -> None:
    service = inference_pb2.DESCRIPTOR.services_by_name["Inference"]
    listed = README.split(f"`{service.full_name}`")[1].split("; also")[0]
    methods = set(re.findall(r"`([A-Z]\w+)`", listed))
    assert methods == {method.name for method in service.methods}


def test_every_path_that_contributing_names_exists() -> None:
    """Paths are written whole; `<module>`, `*` and `x` stand for many."""
    named = {name for name in re.findall(r"`([^`\s]+)`", CONTRIBUTING) if "/" in name}
    paths = {name for name in named if not re.search(r"[<*]", name)}
    assert len(paths) > 30
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]


def test_every_name_that_contributing_calls_is_in_the_file_it_is_said_to_be_in() -> None:
    """Written as `NAME` in `path`."""
    pairs = re.findall(r"`(\w+)` in\s`([^`\s]+\.\w+)`", CONTRIBUTING)
    assert len(pairs) >= 5
    for name, path in pairs:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{name} in {path}"


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)", CONTRIBUTING))))
def test_every_make_target_of_contributing_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
