"""Compiles the C sources into a shared library, once per machine and version of the sources.

Rule 1: a library's name says all that it was made from, so a stale one is never loaded. Rule 2: of
processes that need the same at once one builds and the others wait: two would take twice as long.
Rule 3: no torch here; what is built is the same whoever asks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from executor_service.kernels.native.amx import request_tiles
from executor_service.kernels.native.source_batches import source_batches

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "src"
COMMON_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fopenmp",
    # Which products are fused is for the sources to say: it must not differ between two loops that
    # compute the same row.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)
_LIBRARIES = ("-lm", "-Wl,--no-undefined")
_COMPILERS = ("cc", "gcc", "clang")


class BuildError(Exception):
    """There is no compiler or no source, or what comes of them is no library of kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What a build may ask of the processor."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    """As /proc/cpuinfo spells them."""


_AVX2 = frozenset(("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"))
_AVX512 = frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"))
_AMX = frozenset(("avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"))
_AVX512_FLAGS = ("-march=x86-64-v4", "-mavx512vnni")
LEVELS = (
    Level(
        name="amx",
        flags=(*_AVX512_FLAGS, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        needs=_AVX2 | _AVX512 | _AMX,
    ),
    Level(name="avx512", flags=_AVX512_FLAGS, needs=_AVX2 | _AVX512),
    Level(name="avx2", flags=("-march=x86-64-v3",), needs=_AVX2),
    Level(name="portable", flags=(), needs=frozenset()),
)


def best_level(flags: frozenset[str]) -> Level:
    return next(level for level in LEVELS if level.needs <= flags)


def chosen_level(environ: Mapping[str, str]) -> Level:
    """OCTAVO_NATIVE names one (amx, avx512, avx2, portable), or is 0 for none; unset: the best.

    Raises BuildError.
    """
    wanted = environ.get("OCTAVO_NATIVE")
    if not wanted:
        return best_level(usable_flags())
    if wanted == "0":
        raise BuildError("OCTAVO_NATIVE=0 turns them off")
    for level in LEVELS:
        if level.name == wanted:
            return level
    names = ", ".join(level.name for level in LEVELS)
    raise BuildError(f"OCTAVO_NATIVE={wanted} is none of 0, {names}")


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What this machine's processor can do; nothing where that is told in other words."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, rest = line.partition(":")
        if name.strip() == "flags":
            return frozenset(rest.split())
    return frozenset()


def usable_flags() -> frozenset[str]:
    """Those of the processor that this process may use."""
    flags = cpu_flags()
    return flags if "amx_tile" not in flags or request_tiles() else flags - {"amx_tile"}


def cache_directory(environ: Mapping[str, str]) -> Path:
    if own := environ.get("OCTAVO_CACHE_DIR"):
        return Path(own)
    shared = environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path("~/.cache").expanduser()) / "octavo"


def library(level: Level, directory: Path, environ: Mapping[str, str]) -> Path:
    """Builds it if need be. Without a compiler, one that was built before serves.

    Raises BuildError.
    """
    path, compiler = _planned(level, directory, environ)
    if compiler is not None and not path.exists():
        _build(compiler, level, path)
    return path


def check(environ: Mapping[str, str]) -> None:
    """Raises BuildError for what can be known at once: that there is nothing to compile, or with.

    What the compiler will say is not known yet.
    """
    _planned(chosen_level(environ), cache_directory(environ), environ)


def _planned(
    level: Level, directory: Path, environ: Mapping[str, str]
) -> tuple[Path, Compiler | None]:
    """Where the library is or will be, and what builds it where it is not; None: there is no
    compiler, and one that was built before serves."""
    if not _sources():
        raise BuildError(f"{SOURCES} holds no sources")
    prefix = f"kernels-{level.name}-{_digest(level)}"
    try:
        compiler = find_compiler(environ)
    except BuildError:
        for found in sorted(directory.glob(f"{prefix}-*.so")):
            return found, None
        raise
    version = hashlib.sha256(compiler.version.encode()).hexdigest()[:8]
    return directory / f"{prefix}-{version}.so", compiler


@contextlib.contextmanager
def ahead(environ: Mapping[str, str]) -> Iterator[None]:
    """Builds beside what the block does. Faults show when the library is asked for."""

    def attempt() -> None:
        with contextlib.suppress(BuildError):
            library(chosen_level(environ), cache_directory(environ), environ)

    thread = threading.Thread(target=attempt, name="kernel-build", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    command: tuple[str, ...]
    version: str


def find_compiler(environ: Mapping[str, str]) -> Compiler:
    """$CC, or the system's. Raises BuildError if there is none."""
    candidates = [environ["CC"]] if environ.get("CC") else list(_COMPILERS)
    for candidate in candidates:
        try:
            command = shlex.split(candidate)
        except ValueError as error:
            raise BuildError(f"CC={candidate}: {error}") from error
        if command and shutil.which(command[0], path=environ.get("PATH")):
            return Compiler(command=tuple(command), version=_run([*command, "--version"]))
    raise BuildError(f"no C compiler ({', '.join(candidates)}) is on the PATH")


def compile_objects(
    compiler: Compiler, level: Level, flags: Sequence[str], directory: Path
) -> list[Path]:
    """One object per core, side by side. Raises BuildError with the compiler's words.

    Sources are compiled together, as many as there are cores at a time: the headers of vector
    instructions take half a second of every run of a compiler. So what is static in one of them
    has a name that no other has.
    """
    command = [*compiler.command, *COMMON_FLAGS, *level.flags, *flags]

    def compiled(batch: Path) -> Path:
        target = batch.with_suffix(".o")
        _run([*command, f"-I{SOURCES}", "-c", str(batch), "-o", str(target)])
        return target

    # What has most dtypes of KV in one text.
    longest = "attention_parts.c" if level.needs >= _AMX else "attention_floats.c"
    batches = source_batches(_sources(), longest, len(os.sched_getaffinity(0)), directory)
    with ThreadPoolExecutor(len(batches)) as pool:
        return list(pool.map(compiled, batches))


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.c"))


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """One process at a time; the lock of one that died is free."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build(compiler: Compiler, level: Level, path: Path) -> None:
    started = time.monotonic()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            if path.exists():
                return
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
                objects = compile_objects(compiler, level, (), Path(scratch))
                made = Path(scratch) / path.name
                _link(compiler, level, objects, made)
                made.replace(path)
    except OSError as error:
        raise BuildError(f"cannot write {path}: {error}") from error
    log.info(
        "native kernels built",
        extra={"level": level.name, "seconds": round(time.monotonic() - started, 1)},
    )


def _link(compiler: Compiler, level: Level, objects: Sequence[Path], made: Path) -> None:
    flags = (*level.flags, "-shared", "-fopenmp")
    _run([*compiler.command, *flags, *map(str, objects), *_LIBRARIES, "-o", str(made)])


def _digest(level: Level) -> str:
    digest = hashlib.sha256(repr((COMMON_FLAGS, level.flags, _LIBRARIES)).encode())
    for file in sorted((*_sources(), *SOURCES.glob("*.h"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout + done.stderr
