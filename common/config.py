"""Command-line flags made from frozen dataclasses, so that a flag is written down once.

A field `max_num_seqs` is the flag `--max-num-seqs` and the variable `OCTAVO_MAX_NUM_SEQS`; the
flag wins over the variable, the variable over the default. An empty variable counts as unset, as
compose files pass `${X:-}`. Every error is a `ConfigError` that names the flag.

Field types: int, float, str, bool (`--x` / `--no-x`), `tuple[T, ...]` or `list[T]` (comma
separated), and `T | None`, where "auto" or "none" stands for None unless T is str. A field whose
name ends in `_bytes` also takes units: `512MiB`, `1.5G`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from common.errors import ConfigError

ConfigT = TypeVar("ConfigT")

REQUIRED: Any = dataclasses.MISSING
"""As an option's default: the flag has to be given."""

_NONE_WORDS = frozenset({"auto", "none", "null"})
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True}
_BOOLEANS |= {"0": False, "false": False, "no": False, "off": False}
_UNITS = {"": 1, "b": 1}
for _letter, _shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40)):
    _UNITS |= {_letter + rest: 1 << _shift for rest in ("", "b", "ib")}


def option(
    default: Any,
    *,
    help: str,
    choices: Sequence[str] | None = None,
    flag: str | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field with what its flag needs.

    `flag` replaces the name made from the field's. A `secret` never goes into an argument list,
    where every user of the machine could read it: see `secret_environ`.
    """
    metadata = {"help": help, "choices": choices, "flag": flag, "secret": secret}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag_of(field: dataclasses.Field[Any]) -> str:
    return field.metadata.get("flag") or "--" + field.name.replace("_", "-")


def variable_of(field: dataclasses.Field[Any]) -> str:
    return "OCTAVO_" + flag_of(field).removeprefix("--").replace("-", "_").upper()


def add_arguments(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, cls: type[Any]
) -> None:
    """Adds one flag for each option of `cls`; values stay text until `from_namespace`."""
    hints = typing.get_type_hints(cls)
    for field in _options(cls):
        text = _help_of(field)
        if hints[field.name] is bool:
            parser.add_argument(
                flag_of(field),
                dest=field.name,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=text,
            )
        else:
            parser.add_argument(
                flag_of(field),
                dest=field.name,
                default=argparse.SUPPRESS,
                metavar=_metavar(field, hints[field.name]),
                help=text,
            )


def from_namespace(
    cls: type[ConfigT], namespace: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> ConfigT:
    """Builds `cls` from parsed flags, then the environment, then defaults."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in _options(cls):
        given = getattr(namespace, field.name, None)
        source = flag_of(field)
        if given is None:
            given = environ.get(variable_of(field)) or None
            source = f"{variable_of(field)} (flag {source})"
        if isinstance(given, bool):
            values[field.name] = given
        elif given is not None:
            values[field.name] = _convert(field, hints[field.name], given, source)
        elif not _has_default(field):
            raise ConfigError(
                f"{flag_of(field)} is required (or {variable_of(field)}): {field.metadata['help']}"
            )
    return cls(**values)


def parse(
    cls: type[ConfigT],
    argv: Sequence[str],
    *,
    prog: str,
    environ: Mapping[str, str] = os.environ,
) -> ConfigT:
    """Parses a whole command line. `--help` prints and exits; anything wrong is a ConfigError."""
    parser = Parser(prog=prog, allow_abbrev=False)
    add_arguments(parser, cls)
    return from_namespace(cls, parser.parse_args(list(argv)), environ)


def to_argv(instance: Any, cls: type[Any]) -> list[str]:
    """The flags that give a child `cls` the values of `instance`, which may be a wider config.

    Fields that `instance` lacks keep the child's defaults; secrets are left out.
    """
    hints = typing.get_type_hints(cls)
    argv: list[str] = []
    for field in _options(cls):
        if field.metadata.get("secret") or not hasattr(instance, field.name):
            continue
        value = getattr(instance, field.name)
        if isinstance(value, bool):
            argv.append(flag_of(field) if value else "--no-" + flag_of(field).removeprefix("--"))
        elif value is not None:
            argv.append(f"{flag_of(field)}={_to_text(value)}")
        elif str not in typing.get_args(hints[field.name]):
            argv.append(f"{flag_of(field)}=none")
    return argv


def variables_of(cls: type[Any]) -> frozenset[str]:
    """The environment variables that speak for the flags of `cls`."""
    return frozenset(variable_of(field) for field in _options(cls))


def secret_environ(instance: Any, cls: type[Any]) -> dict[str, str]:
    """The environment variables that hand `instance`'s secrets to a child."""
    return {
        variable_of(field): _to_text(value)
        for field in _options(cls)
        if field.metadata.get("secret") and (value := getattr(instance, field.name, None))
    }


class Parser(argparse.ArgumentParser):
    """What is wrong is a ConfigError of one line; a misspelt flag is told what it may have been."""

    def error(self, message: str) -> NoReturn:
        flags = list(self._option_string_actions)
        words = (word.split("=")[0].rstrip(":,") for word in message.split() if word[:2] == "--")
        near = [
            get_close_matches(word, flags, n=1, cutoff=0.75) for word in words if word not in flags
        ]
        meant = "".join(f"; did you mean {found[0]}?" for found in near if found)
        raise ConfigError(f"{message}{meant} (see {self.prog} --help)")


def _options(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if "help" in field.metadata]


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _help_of(field: dataclasses.Field[Any]) -> str:
    text = str(field.metadata["help"])
    if field.metadata["choices"]:
        text += f"; one of {', '.join(field.metadata['choices'])}"
    if not _has_default(field):
        text += " (required)"
    elif _default_of(field) is not None and not field.metadata["secret"]:
        text += f" (default {_to_text(_default_of(field)) or 'empty'})"
    return text.replace("%", "%%")


def _metavar(field: dataclasses.Field[Any], hint: Any) -> str:
    inner = _without_none(hint)
    if typing.get_origin(inner) in (tuple, list):
        return "X,Y,..."
    if field.name.endswith("_bytes"):
        return "BYTES"
    return {int: "N", float: "X"}.get(inner, "TEXT")


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint


def _convert(field: dataclasses.Field[Any], hint: Any, given: str, source: str) -> Any:
    inner = _without_none(hint)
    if inner is not hint and inner is not str and given.strip().lower() in _NONE_WORDS:
        return None
    origin = typing.get_origin(inner)
    if origin in (tuple, list):
        element = typing.get_args(inner)[0]
        parts = [part.strip() for part in given.split(",") if part.strip()]
        return origin(_scalar(field, element, part, source) for part in parts)
    return _scalar(field, inner, given, source)


def _scalar(field: dataclasses.Field[Any], kind: Any, text: str, source: str) -> Any:
    choices = field.metadata["choices"]
    if choices and text not in choices:
        raise ConfigError(f"{source}: {text!r} is not one of {', '.join(choices)}")
    converter: Callable[[str], Any] = kind
    if kind is bool:
        converter = _to_bool
    elif kind is int and field.name.endswith("_bytes"):
        converter = _to_bytes
    try:
        return converter(text.strip() if kind is not str else text)
    except (ValueError, KeyError) as error:
        expected = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "?")
        raise ConfigError(f"{source}: {text!r} is not {expected}") from error


def _to_bool(text: str) -> bool:
    return _BOOLEANS[text.lower()]


def _to_bytes(text: str) -> int:
    digits = text.rstrip("KMGTBkmgtib ")
    return int(float(digits) * _UNITS[text[len(digits) :].strip().lower()])


def _to_text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(_to_text(part) for part in value)
    return str(value)
