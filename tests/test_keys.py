"""Content keys and random streams are the same on every machine and in every process."""

import pytest

from tilewright.core.keys import canonical_json, content_key
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream


def test_key_ignores_the_order_of_members() -> None:
    assert content_key({"a": 1, "b": [2, 3]}) == content_key({"b": [2, 3], "a": 1})


def test_key_is_pinned() -> None:
    assert content_key({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def test_nan_has_no_canonical_form() -> None:
    with pytest.raises(ValueError):
        canonical_json(float("nan"))


def test_streams_repeat_and_differ_by_path() -> None:
    a = stream(7, "search", 1).integers(0, 1 << 30, 4)
    assert (a == stream(7, "search", 1).integers(0, 1 << 30, 4)).all()
    assert (a != stream(7, "search", 2).integers(0, 1 << 30, 4)).any()


def test_schedule_survives_json_and_ignores_knob_order() -> None:
    s = Schedule.of("loops", 1, {"tile_i": 8, "order": "ij"})
    assert Schedule.from_json(s.to_json()) == s
    assert Schedule.of("loops", 1, {"order": "ij", "tile_i": 8}).key == s.key
