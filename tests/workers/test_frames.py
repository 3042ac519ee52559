"""Frames survive the pipe, and rubbish in a pipe ends in a clear error."""

from multiprocessing import Pipe

import pytest

from tilewright.core.errors import WorkerLost
from tilewright.workers.frames import Frame, receive, send


def test_a_frame_arrives_as_it_was_sent() -> None:
    here, there = Pipe()
    frame = Frame({"a": [1, 2.5, "é", None, True], "b": {}}, (b"", b"\x00\xff" * 1000))
    send(here, frame)
    assert receive(there) == frame


def test_numbers_that_are_none_are_not_sent() -> None:
    here, _ = Pipe()
    with pytest.raises(ValueError):
        send(here, Frame({"seconds": float("nan")}))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"short",
        b"\xff" * 8,
        b"\x01" + b"\x00" * 15,
        b"\x00" * 8 + b"\x02" + b"\x00" * 7 + b"[]",
        b"\x00" * 8 + b"\x03" + b"\x00" * 7 + b"{,}",
        b"\x00" * 8 + b"\xff" * 8 + b"{}",
    ],
)
def test_a_broken_message_is_a_lost_worker(message: bytes) -> None:
    here, there = Pipe()
    here.send_bytes(message)
    with pytest.raises(WorkerLost, match=r"broken message|object belongs"):
        receive(there)


def test_a_closed_pipe_is_an_end_of_file() -> None:
    here, there = Pipe()
    here.close()
    with pytest.raises(EOFError):
        receive(there)
