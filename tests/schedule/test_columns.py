"""Columns of settings, and records of derived sizes for all of them or one."""

from dataclasses import dataclass

import numpy as np
import pytest

from tilewright.core.errors import IllegalSchedule
from tilewright.schedule.space.columns import Size, columns_of_setting, row_of_record
from tilewright.schedule.space.enumerate import all_settings
from tilewright.schedule.space.knob import Knob

KNOBS = (Knob("tile", (16, 32), "how large a tile is"), Knob("order", ("rows", "columns"), "what comes first"))


@dataclass(frozen=True)
class _Sizes:
    tile: Size
    blocks: Size
    name: str = "sizes"


def test_a_row_of_a_record_has_plain_integers() -> None:
    tile = all_settings(KNOBS).ints("tile")
    row = row_of_record(_Sizes(tile, 64 // tile), 2)
    assert row == _Sizes(32, 2) and type(row.blocks) is int
    assert row_of_record(row, 0) == row


def test_the_columns_of_one_setting() -> None:
    columns = columns_of_setting(KNOBS, {"order": "columns", "tile": 16}, {"more": 3})
    assert (len(columns), columns.ints("tile")[0], columns.flags("order", "columns")[0]) == (1, 16, np.True_)
    assert columns.ints("more").tolist() == [3]
    with pytest.raises(IllegalSchedule, match="knob tile is 17; allowed here: 16, 32"):
        columns_of_setting(KNOBS, {"order": "columns", "tile": 17})
