"""What every sketch of plans does: pruning, which drops legal settings that are not worth a measurement."""

from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue
from tilewright.core.target import Target
from tilewright.ir.stmt import Kernel
from tilewright.schedule.sketch import Peaks
from tilewright.schedule.space.columns import Bools, Columns
from tilewright.schedule.space.constraint import Constraint
from tilewright.schedule.space.knob import Knob
from tilewright.schedule.tile_sketch import Plan, TileSketch
from tilewright.te.operators import OPERATORS

WORKLOAD = OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8})
TARGET = Target("cuda", "sm_90a")


class TwoKnobs(Plan):
    """A plan that finds small tiles promising."""

    knobs = (Knob("tile", (16, 32, 64), "how large a tile is"), Knob("stages", (2, 3, 4), "how many stages", 1))

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return ()

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        return columns.ints("tile") < 64

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> NDArray[np.float64]:
        return columns.ints("tile").astype(np.float64)

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        return {}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        raise NotImplementedError


SKETCH = TileSketch("two_knobs", 1, (), lambda workload, target: TwoKnobs())


def test_values_of_a_knob_that_are_not_promising_are_pruned_and_stay_legal() -> None:
    pruned = SKETCH.space(WORKLOAD, TARGET)
    assert [dict(pruned.schedule(n).knobs) for n in range(len(pruned))] == [
        {"tile": 16, "stages": 2},
        {"tile": 32, "stages": 2},
    ]
    assert len(SKETCH.space(WORKLOAD, TARGET, policy=SpacePolicy(prune=False))) == 9


class Measured(TwoKnobs):
    """A plan that finds tiles promising by what was measured."""

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        return columns.ints("tile") <= peaks.get("most", 64)


def test_a_sketch_that_was_asked_before_gives_the_spaces_of_a_new_one() -> None:
    """It keeps the count and the promising settings of its last space, for whatever limit, seed and peaks come next."""
    peaks = {"most": 16.0}
    other = OPERATORS["matmul"].workload({"m": 4, "n": 8, "k": 8})
    asked = TileSketch("measured", 1, (), lambda workload, target: Measured())
    sizes = set()
    for workload, most, prune, (seed, limit) in product(
        (WORKLOAD, other), (16.0, 32.0, 64.0), (True, True, False), ((0, 9), (1, 2), (2, 2))
    ):
        peaks["most"] = most  # the mapping that it was given before
        new = TileSketch("measured", 1, (), lambda workload, target: Measured())
        spaces = [
            sketch.space(workload, TARGET, seed=seed, limit=limit, policy=SpacePolicy(prune=prune), peaks=peaks)
            for sketch in (asked, new)
        ]
        assert np.array_equal(spaces[0].codes, spaces[1].codes)
        assert [(s.total, s.low, s.high) for s in spaces[:1]] == [(s.total, s.low, s.high) for s in spaces[1:]]
        sizes.add(len(spaces[0]))
    assert sizes == {1, 2, 3, 9}
