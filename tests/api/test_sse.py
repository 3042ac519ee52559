"""Server-sent events are read as the standard says."""

from tilewright.api.sse import read_events

STREAM = """: a comment

retry: 2000

event: trial
data: {"a":
data: 1}
id: 7

data: no name

event: dropped without data

id: 9
data:no blank
"""


def test_events_of_a_stream() -> None:
    found = list(read_events((STREAM + "\n").split("\n")))
    assert found == [("trial", '{"a":\n1}', "7"), ("message", "no name", "7"), ("message", "no blank", "9")]


def test_an_event_that_is_not_ended_is_not_given() -> None:
    assert list(read_events(["data: half"])) == []
