"""Memory on its way to a device and back is nobody else's, and what arrives is what was sent."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from executor_service.kernels.transfers import Downloads, Uploads, upload_now
from tests.support.late_stream import LateMark, LateStream

COLUMNS: list[np.ndarray[Any, Any]] = [
    np.arange(5, dtype=np.int32),
    np.array([True, False, True]),
    np.arange(6, dtype=np.float64).reshape(2, 3),
    np.zeros(0, np.int32),
    np.arange(10, dtype=np.int64)[::2],
    np.float32([1.5]),
]


def check(found: list[torch.Tensor], columns: list[np.ndarray[Any, Any]]) -> None:
    for tensor, column in zip(found, columns, strict=True):
        assert tensor.numpy().dtype == column.dtype
        assert np.array_equal(tensor.numpy(), column)


def test_columns_arrive_as_they_were_each_at_16_bytes() -> None:
    uploads = Uploads(LateStream())
    uploads.begin()
    found = uploads.send(COLUMNS)
    check(found, COLUMNS)
    first = found[0].data_ptr()
    assert all((t.data_ptr() - first) % 16 == 0 for t in found if t.numel())
    check(upload_now(COLUMNS, torch.device("cpu")), COLUMNS)


def send_steps(stream: LateStream, uploads: Uploads, num_steps: int) -> None:
    for step in range(num_steps):
        uploads.begin()
        columns = [np.full(8, step, np.int64), np.full(3, -step, np.int32)]
        check(uploads.send(columns), columns)
        check(uploads.send(columns[:1]), columns[:1])
        uploads.end()


def test_a_step_is_laid_out_while_the_one_before_is_being_sent() -> None:
    stream = LateStream()
    uploads = Uploads(stream)
    send_steps(stream, uploads, 2)
    assert stream.num_waits == 0
    send_steps(stream, uploads, 1)
    assert stream.num_waits == 1
    assert stream.num_passed == 2, "no longer than for the copies of the step before the last"


def test_memory_is_kept_and_never_changed_before_it_is_sent() -> None:
    stream = LateStream()
    send_steps(stream, Uploads(stream), 40)
    stream.mark().wait()
    assert stream.num_host_memories == 2


class Impatient(LateStream):
    """Whose marks do not wait: what the tests here must notice."""

    def mark(self) -> Any:
        return PassedMark(self, super().mark().place)


@dataclass(frozen=True, slots=True)
class PassedMark:
    stream: LateStream
    place: int

    def wait(self) -> None:
        pass

    def ns_since(self, earlier: Any) -> int:
        return 0


def test_reuse_before_a_copy_is_done_is_noticed() -> None:
    stream = Impatient()
    send_steps(stream, Uploads(stream), 3)
    with pytest.raises(AssertionError, match="used again"):
        LateMark(stream, 9).wait()


def test_a_read_before_a_copy_is_done_is_noticed() -> None:
    found = Downloads(Impatient()).fetch([torch.arange(3)]).read()
    assert found[0].tolist() != [0, 1, 2]


def test_sets_grow_to_the_largest_step() -> None:
    stream = LateStream()
    uploads = Uploads(stream, num_bytes=64)
    for size in (4, 100, 1000, 1000, 3):
        uploads.begin()
        columns = [np.arange(size, dtype=np.int64), np.arange(2, dtype=np.int32)]
        for _ in range(3):
            check(uploads.send(columns), columns)
        uploads.end()
    stream.mark().wait()
    before = stream.num_host_memories
    send_steps(stream, uploads, 10)
    assert stream.num_host_memories == before


def test_downloads_are_what_was_there_in_the_order_of_the_stream() -> None:
    stream = LateStream()
    downloads = Downloads(stream)
    token, row = torch.tensor([[1, 2, 3]], dtype=torch.int32), torch.rand(2, 5)
    wanted = token.clone(), row.clone()
    arrival = downloads.fetch([token, row])
    token.zero_()
    row.zero_()
    found = arrival.read()
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(found, wanted, strict=True))


def test_memory_of_what_was_not_read_yet_is_not_taken() -> None:
    stream = LateStream()
    downloads = Downloads(stream)
    arrivals = [downloads.fetch([torch.full((4,), i)]) for i in range(3)]
    assert [a.read()[0].tolist() for a in arrivals] == [[i] * 4 for i in range(3)]
    for i in range(20):
        assert downloads.fetch([torch.full((4,), i)]).read()[0].tolist() == [i] * 4
    assert stream.num_host_memories == 3


def test_results_are_read_on_another_thread() -> None:
    downloads = Downloads(LateStream())
    arrivals = [downloads.fetch([torch.full((4,), i)]) for i in range(50)]
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(int(a.read()[0][0]) for a in arrivals))
    thread.start()
    thread.join()
    assert found == list(range(50))
