from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from common.config import REQUIRED, option, parse, secret_environ, to_argv
from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Flags:
    model: str = option("tiny", help="which model")
    max_num_seqs: int = option(256, help="sequences per step")
    rate: float = option(0.5, help="share")
    enable_prefix_caching: bool = option(True, help="cache prefixes")
    executors: tuple[str, ...] = option((), help="addresses")
    sizes: list[int] = option([1, 2], help="sizes")
    num_blocks: int | None = option(None, help="blocks")
    revision: str | None = option(None, help="revision")
    kv_bytes: int | None = option(None, help="memory")
    dtype: str = option("auto", choices=("auto", "float32"), help="type")
    http_port: int = option(8000, flag="--port", help="port")
    api_key: str | None = option(None, secret=True, help="key")
    derived: int = 7


def read(*argv: str, **environ: str) -> Flags:
    return parse(Flags, argv, prog="flags", environ=environ)


def test_no_arguments_give_the_defaults() -> None:
    assert read() == Flags()


def test_flag_wins_over_variable_and_variable_over_default() -> None:
    assert read(OCTAVO_MAX_NUM_SEQS="8").max_num_seqs == 8
    assert read("--max-num-seqs", "4", OCTAVO_MAX_NUM_SEQS="8").max_num_seqs == 4
    assert read(OCTAVO_PORT="1").http_port == 1


def test_empty_variable_counts_as_unset() -> None:
    assert read(OCTAVO_API_KEY="", OCTAVO_MAX_NUM_SEQS="") == Flags()


def test_booleans_come_as_flag_pair_and_as_variable() -> None:
    assert not read("--no-enable-prefix-caching").enable_prefix_caching
    assert read("--enable-prefix-caching", OCTAVO_ENABLE_PREFIX_CACHING="off").enable_prefix_caching
    assert not read(OCTAVO_ENABLE_PREFIX_CACHING="off").enable_prefix_caching


def test_lists_are_comma_separated() -> None:
    assert read("--executors", "a:1, b:2,").executors == ("a:1", "b:2")
    assert read("--sizes=3,4").sizes == [3, 4]


@pytest.mark.parametrize("word", ["auto", "none", "null", "AUTO"])
def test_auto_means_none_unless_the_field_is_text(word: str) -> None:
    assert read("--num-blocks", "5").num_blocks == 5
    assert read("--num-blocks", word).num_blocks is None
    assert read("--revision", word).revision == word


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1024", 1024), ("4KiB", 4096), ("1.5G", 3 << 29), ("2 mb", 2 << 20), ("1TiB", 1 << 40)],
)
def test_byte_counts_take_units(text: str, expected: int) -> None:
    assert read("--kv-bytes", text).kv_bytes == expected


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--max-num-seqs", "many"], "--max-num-seqs"),
        (["--rate", "fast"], "--rate"),
        (["--kv-bytes", "4 parsecs"], "--kv-bytes"),
        (["--kv-bytes", "GiB"], "--kv-bytes"),
        (["--dtype", "float8"], "--dtype"),
        (["--sizes", "1,x"], "--sizes"),
        (["--port"], "--port"),
        (["--unknown", "1"], "--unknown"),
        (["--max-num", "1"], "--max-num"),
        (["stray"], "stray"),
    ],
)
def test_errors_name_the_flag(argv: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read(*argv)


def test_error_in_a_variable_names_both_variable_and_flag() -> None:
    with pytest.raises(ConfigError, match=r"OCTAVO_RATE.*--rate"):
        read(OCTAVO_RATE="x")
    with pytest.raises(ConfigError, match=r"OCTAVO_ENABLE_PREFIX_CACHING"):
        read(OCTAVO_ENABLE_PREFIX_CACHING="maybe")


def test_missing_required_flag_is_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needy:
        model: str = option(REQUIRED, help="which model")

    with pytest.raises(ConfigError, match="--model is required"):
        parse(Needy, [], prog="needy", environ={})


def test_argv_rebuilds_the_config_whatever_the_environment_says() -> None:
    flags = Flags(
        model="-dash", rate=-1.0, enable_prefix_caching=False, executors=("a:1", "b:2"), sizes=[]
    )
    environ = {"OCTAVO_NUM_BLOCKS": "9", "OCTAVO_RATE": "3", "OCTAVO_ENABLE_PREFIX_CACHING": "1"}
    assert parse(Flags, to_argv(flags, Flags), prog="flags", environ=environ) == flags


def test_argv_of_a_wider_config_carries_the_shared_fields() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Narrow:
        rate: float = option(0.1, help="share")
        depth: int = option(2, help="depth")

    assert to_argv(Flags(rate=0.25), Narrow) == ["--rate=0.25"]


def test_secrets_travel_by_environment_and_never_in_argv() -> None:
    flags = Flags(api_key="hush")
    assert not any("hush" in argument for argument in to_argv(flags, Flags))
    environ = secret_environ(flags, Flags)
    assert parse(Flags, to_argv(flags, Flags), prog="flags", environ=environ) == flags


def test_help_shows_each_flag_with_its_default() -> None:
    program = "import sys; from tests.common.test_config import read; read('--help')"
    text = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "--max-num-seqs N" in text
    assert "(default 256)" in text
    assert "--no-enable-prefix-caching" in text
