from __future__ import annotations

import io
import json
import logging
import sys
import threading

import pytest

from common.log import JsonFormatter, LineHandler, TextFormatter


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "room.part", "levelno": logging.INFO, "levelname": "INFO", "msg": message}
    )
    made.args = args
    vars(made).update(extra)
    return made


def test_text_line_carries_extra_fields() -> None:
    line = TextFormatter("executor").format(record("attached to %s", "it", epoch=3))
    assert line.endswith("INFO executor: attached to it epoch=3")


def test_json_line_is_one_object_with_extra_fields_beside_the_message() -> None:
    line = JsonFormatter("executor").format(record("two\nlines", epoch=3, peer=object))
    entry = json.loads(line)
    assert "\n" not in line
    assert (entry["message"], entry["epoch"], entry["level"]) == ("two\nlines", 3, "info")
    assert (entry["service"], entry["logger"]) == ("executor", "room.part")


@pytest.mark.parametrize("formatter", [TextFormatter("x"), JsonFormatter("x")])
def test_traces_are_kept(formatter: logging.Formatter) -> None:
    made = record("failed")
    try:
        raise ValueError("reason")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: reason" in formatter.format(made)


def test_lines_are_written_in_order() -> None:
    stream = io.StringIO()
    handler = LineHandler(stream)
    for number in range(100):
        handler.emit(record("line %d", number))
    handler.flush()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(100)]


def test_blocked_stream_blocks_nobody_and_drops_are_counted() -> None:
    opened = threading.Event()

    class Blocked(io.StringIO):
        def write(self, text: str) -> int:
            opened.wait()
            return super().write(text)

    stream = Blocked()
    handler = LineHandler(stream, max_waiting_lines=10)
    for number in range(1000):
        handler.emit(record("line %d", number))
    opened.set()
    handler.flush()
    handler.emit(record("last"))
    handler.flush()
    assert "log lines dropped)" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) < 20


def test_full_disk_is_survived() -> None:
    with open("/dev/full", "w") as full:
        handler = LineHandler(full)
        handler.emit(record("lost"))
        handler.flush()
        handler.emit(record("lost too"))
        handler.flush()
        # Closing flushes what the file still holds, which fails as it must.
        with pytest.raises(OSError, match="No space"):
            full.close()
