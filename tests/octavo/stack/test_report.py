from __future__ import annotations

import io
import threading

from rich.console import Console

from octavo.stack.report import PlainRenderer, Reporter, RichRenderer


class Stuck(PlainRenderer):
    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.release = threading.Event()

    def line(self, text: str) -> None:
        self.release.wait()


def test_a_reader_that_stopped_reading_holds_nobody_up() -> None:
    renderer = Stuck()
    reporter = Reporter(renderer)
    for _ in range(20_000):
        reporter.line("x")
    reporter.close()
    renderer.release.set()


def test_lines_and_progress_come_in_order() -> None:
    stream = io.StringIO()
    reporter = Reporter(PlainRenderer(stream))
    reporter.loading("executor-0", 1, 2, "weights")
    reporter.line("between")
    reporter.loading("executor-0", 2, 2, "weights")
    reporter.close()
    assert stream.getvalue().splitlines() == [
        "executor-0: weights 1/2",
        "between",
        "executor-0: weights 2/2",
    ]


def test_plain_progress_is_thinned_but_keeps_first_and_last() -> None:
    stream = io.StringIO()
    renderer = PlainRenderer(stream)
    for done in range(301):
        renderer.loading("executor-0", done, 300, "weights")
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("0/300")
    assert lines[-1].endswith("300/300")
    assert len(lines) < 10


def test_a_terminal_shows_a_bar_for_each_child_and_takes_it_away() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    renderer = RichRenderer(console)
    renderer.loading("executor-0", 1, 2, "weights")
    renderer.loading("executor-1", 2, 2, "weights")
    renderer.line("a [line] of a child")
    renderer.settle()
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "executor-0" in shown
    assert "executor-1" in shown
    assert "a [line] of a child" in shown


def test_a_closed_stream_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    reporter = Reporter(PlainRenderer(stream))
    reporter.line("x")
    reporter.close()
