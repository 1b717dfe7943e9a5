"""Libraries are built once per version of the sources, by whatever compiler there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor_service.kernels.native import build, library
from executor_service.kernels.native.__main__ import main

WARNINGS = ("-Wall", "-Wextra", "-Werror")
BASELINE = build.LEVELS[-1]


def compiler() -> build.Compiler:
    try:
        return build.find_compiler({"PATH": "/usr/local/bin:/usr/bin:/bin"})
    except build.BuildError:
        pytest.skip("no C compiler")


@pytest.mark.parametrize("level", build.LEVELS, ids=lambda level: level.name)
def test_every_level_compiles_without_a_warning(level: build.Level, tmp_path: Path) -> None:
    """All the way for those that no other test here compiles, as this machine cannot run them."""
    runnable = level.needs <= build.usable_flags()
    flags = (*WARNINGS, "-fsyntax-only" if runnable else "-O0")
    assert build.compile_objects(compiler(), level, flags, tmp_path)


@pytest.mark.parametrize("cores", [1, 3, 4, 5, 6])
def test_sources_compile_together_in_as_many_files_as_there_are_cores(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one of them defines must mean nothing in those that come after it."""
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda pid: set(range(cores)))
    flags = (*WARNINGS, "-fsyntax-only")
    assert len(build.compile_objects(compiler(), BASELINE, flags, tmp_path)) == cores


def test_the_best_level_is_the_first_whose_every_need_is_met() -> None:
    amx, avx512, avx2, portable = build.LEVELS
    assert build.best_level(amx.needs | {"sse"}) is amx
    assert build.best_level(amx.needs - {"amx_tile"}) is avx512
    assert build.best_level(avx512.needs - {"avx512_vnni"}) is avx2
    assert build.best_level(avx2.needs - {"f16c"}) is portable
    assert build.best_level(frozenset()) is portable


def test_tiles_that_the_system_refuses_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    amx, avx512, *_ = build.LEVELS
    monkeypatch.setattr(build, "cpu_flags", lambda: amx.needs)
    monkeypatch.setattr(build, "request_tiles", lambda: False)
    assert build.chosen_level({}) is avx512
    monkeypatch.setattr("executor_service.kernels.native.amx.request_tiles", lambda: False)
    with pytest.raises(build.BuildError, match="refuses"):
        library.load({"OCTAVO_NATIVE": "amx"})


def test_flags_of_the_processor_are_read_once(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: x\n")
    assert build.cpu_flags(cpuinfo) == {"fpu", "avx2", "fma"}
    assert build.cpu_flags(tmp_path / "absent") == frozenset()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that compile in no time."""
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "a.c").write_text('#include "a.h"\nint a(void) { return A; }\n')
    (sources / "a.h").write_text("#define A 1\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    return sources


ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def test_a_library_is_built_once_and_again_when_a_header_changes(
    small: Path, tmp_path: Path
) -> None:
    compiler()
    cache = tmp_path / "cache"
    first = build.library(BASELINE, cache, ENVIRON)
    made = first.stat().st_mtime_ns
    assert build.library(BASELINE, cache, ENVIRON) == first
    assert first.stat().st_mtime_ns == made
    (small / "a.h").write_text("#define A 2\n")
    second = build.library(BASELINE, cache, ENVIRON)
    assert second != first
    assert sorted(cache.iterdir()) == sorted((first, second))


def test_what_was_built_before_serves_without_a_compiler(small: Path, tmp_path: Path) -> None:
    compiler()
    cache = tmp_path / "cache"
    with pytest.raises(build.BuildError, match="no C compiler"):
        build.library(BASELINE, cache, {"PATH": ""})
    built = build.library(BASELINE, cache, ENVIRON)
    assert build.library(BASELINE, cache, {"PATH": ""}) == built


def test_a_compilers_complaint_is_in_the_error(small: Path, tmp_path: Path) -> None:
    compiler()
    (small / "a.c").write_text("int a(void) { return undeclared_name; }\n")
    with pytest.raises(build.BuildError, match="undeclared_name"):
        build.library(BASELINE, tmp_path / "cache", ENVIRON)
    assert not list((tmp_path / "cache").iterdir())


def test_without_sources_nothing_is_built(small: Path, tmp_path: Path) -> None:
    """As in an installation that left them out."""
    (small / "a.c").unlink()
    with pytest.raises(build.BuildError, match="no sources"):
        build.library(BASELINE, tmp_path / "cache", ENVIRON)


def test_a_library_without_a_kernel_is_an_error_that_names_it(small: Path, tmp_path: Path) -> None:
    compiler()
    environ = ENVIRON | {"OCTAVO_CACHE_DIR": str(tmp_path / "cache")}
    with pytest.raises(build.BuildError, match="no function oct_use_threads"):
        library.open_level(BASELINE, environ)


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(
    small: Path, tmp_path: Path
) -> None:
    compiler()
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(build.BuildError, match="cache"):
        build.library(BASELINE, tmp_path / "cache", ENVIRON)


BUILD = """
import sys, pathlib
from executor_service.kernels.native import build
build.SOURCES = pathlib.Path(sys.argv[1])
print(build.library(build.LEVELS[-1], pathlib.Path(sys.argv[2]), {"PATH": sys.argv[3]}))
"""


def test_several_processes_may_build_the_same_at_once(small: Path, tmp_path: Path) -> None:
    compiler()
    arguments = [str(small), str(tmp_path / "cache"), ENVIRON["PATH"]]
    started = [
        subprocess.Popen([sys.executable, "-c", BUILD, *arguments], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    outputs = {process.communicate()[0] for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(outputs) == 1
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == [
        outputs.pop().decode().strip()
    ]


def test_a_build_ahead_is_there_at_the_end_of_its_block(small: Path, tmp_path: Path) -> None:
    compiler()
    environ = ENVIRON | {"OCTAVO_CACHE_DIR": str(tmp_path / "cache"), "OCTAVO_NATIVE": "portable"}
    with build.ahead(environ):
        pass
    assert len(list((tmp_path / "cache").iterdir())) == 1
    with build.ahead(environ | {"OCTAVO_NATIVE": "0"}):
        pass


def test_kernels_can_be_turned_off_and_an_unknown_level_is_refused() -> None:
    with pytest.raises(build.BuildError, match="OCTAVO_NATIVE=0"):
        library.load({"OCTAVO_NATIVE": "0"})
    with pytest.raises(build.BuildError, match="OCTAVO_NATIVE=avx1024"):
        library.load({"OCTAVO_NATIVE": "avx1024"})


def test_the_cache_is_where_the_environment_says() -> None:
    assert build.cache_directory({"OCTAVO_CACHE_DIR": "/x", "XDG_CACHE_HOME": "/y"}) == Path("/x")
    assert build.cache_directory({"XDG_CACHE_HOME": "/y"}) == Path("/y/octavo")
    assert build.cache_directory({}) == Path.home() / ".cache" / "octavo"


def test_compiling_ahead_makes_the_library_that_a_start_looks_for(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"OCTAVO_CACHE_DIR": str(tmp_path / "cache"), "OCTAVO_NATIVE": BASELINE.name}
    monkeypatch.setattr("executor_service.kernels.native.__main__.os.environ", environ | ENVIRON)
    compiler()
    main()
    made = build.library(BASELINE, tmp_path / "cache", ENVIRON)
    assert capsys.readouterr().err == f"native kernels: {made}\n"


def test_without_a_compiler_nothing_is_compiled_ahead_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"OCTAVO_CACHE_DIR": str(tmp_path), "PATH": str(tmp_path)}
    monkeypatch.setattr("executor_service.kernels.native.__main__.os.environ", environ)
    main()
    assert "no C compiler" in capsys.readouterr().err


@pytest.mark.parametrize("command", [" ", '"gcc'])
def test_a_command_that_is_none_is_no_compiler(command: str) -> None:
    with pytest.raises(build.BuildError, match="CC|compiler"):
        build.find_compiler({**os.environ, "CC": command})
