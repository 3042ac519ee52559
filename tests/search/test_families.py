"""Shape families: few schedules, a dispatcher that is correct at every shape, and its regret elsewhere."""

import ctypes
import json
import shutil
import subprocess
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilewright.core.errors import InvalidParameter
from tilewright.core.schedule import Schedule
from tilewright.search.families.cover import MISSING, covering_set
from tilewright.search.families.emit import dispatcher_in_c, dispatcher_in_python
from tilewright.search.families.expected import ExpectedTimes, Prior
from tilewright.search.families.family import Family, make_family
from tilewright.search.families.shapes import Dimension, Shape, ShapeTable, all_shapes
from tilewright.search.families.tree import Grower, Leaf, leaf_of

TILES = (16, 24, 32, 48, 64, 96, 128, 192, 256)
SCHEDULES = tuple(Schedule.of("gemm", 1, {"tile_m": tile, "stages": s}) for tile in TILES for s in (2, 3))
M = Dimension("m", 1, 8192)


def seconds(shape: Shape, schedule: Schedule) -> float:
    """A product of m rows in tiles: whole waves of tiles, small tiles are less efficient, stages pay with long k."""
    tile = schedule.integer("tile_m")
    waves = -(-shape[0] // tile)
    return waves * tile * (1 + 24 / tile) * (1 + 0.02 * abs(schedule.integer("stages") - (2 if tile < 64 else 3))) + 40


def always(table: ShapeTable) -> Prior:
    """All are legal, and nothing is known of their times."""
    return lambda shapes, schedules: np.ones((len(shapes), len(schedules)))


def waves(table: ShapeTable) -> Prior:
    """All are legal. It is known how many tiles there are, and not how efficient they are."""
    return lambda shapes, schedules: np.array(
        [[-(-m // s.integer("tile_m")) * s.integer("tile_m") for s in schedules] for (m,) in shapes], np.float64
    )


def table_of(shapes: Sequence[Shape]) -> ShapeTable:
    return ShapeTable.of({shape: {s: seconds(shape, s) for s in SCHEDULES} for shape in shapes})


SPREAD = [(m,) for m in sorted({round(m) for m in np.geomspace(1, 8192, 64)})]
"""Rows to measure at, evenly spaced in their logarithm."""


def test_eight_schedules_serve_products_of_1_to_8192_rows(tmp_path: Path) -> None:
    family = make_family([M], table_of(SPREAD), waves, most=8, target=0.005)
    assert len(family.schedules) <= 8 and family.regret is not None and family.regret.shapes > 15
    unseen = [(int(m),) for m in np.random.default_rng(1).integers(1, 8193, 300)]
    truth = table_of(unseen)
    found = [
        seconds(shape, family.schedules[family.choose(shape)]) / truth.seconds[truth.shapes.index(shape)].min() - 1
        for shape in unseen
    ]
    assert np.mean(found) <= 0.02 and np.percentile(found, 95) <= 0.05
    assert Family.from_json(json.loads(json.dumps(family.to_json()))) == family
    check_code(family, tmp_path, [(m,) for m in (*range(1, 300), *range(300, 8193, 17), 8192)])


def test_schedules_that_take_turns_are_told_apart() -> None:
    """No single cut lowers the cost: on both sides of it the same schedule is best."""
    grid = np.arange(1, 251)[:, None]
    second = (grid[:, 0] > 100) & (grid[:, 0] <= 150)
    regret = np.stack([second, ~second], axis=1).astype(np.float64)
    tree = Grower(grid, 0.001 * regret).grow()
    chosen = [leaf_of(tree, (int(m),)).schedule for m in grid[:, 0]]
    assert chosen == second.astype(int).tolist()
    assert Grower(grid, 1e-6 * regret).grow() == Leaf(0)  # not worth two cuts


def test_a_prior_says_what_happens_between_measured_shapes() -> None:
    families = [make_family([M], table_of(SPREAD), learn, most=8, target=0.0) for learn in (always, waves)]
    held_out = [family.regret.mean for family in families if family.regret is not None]
    assert held_out[1] < 0.5 * held_out[0]
    unseen = sorted({(round(float(m)),) for m in np.geomspace(2, 8190, 200)})
    truth = table_of(unseen).seconds.min(axis=1)
    without, found = (
        [seconds(s, f.schedules[f.choose(s)]) / best - 1 for s, best in zip(unseen, truth, strict=True)]
        for f in families
    )
    assert np.mean(found) < 0.01 < np.mean(without)


def test_times_are_expected_by_the_prior_and_by_what_it_was_off_by_nearby() -> None:
    slow, fast, apart = (Schedule.of("gemm", 1, {"tile_m": tile}) for tile in (16, 32, 64))
    table = ShapeTable.of({(16,): {slow: 4.0, fast: 2.0}, (256,): {slow: 9.0, fast: 3.0, apart: 3.0}})

    def prior(shapes: Sequence[Shape], schedules: Sequence[Schedule]) -> NDArray[np.float64]:
        return np.array([[m if s != apart or m > 32 else np.inf for s in schedules] for (m,) in shapes], np.float64)

    expected = ExpectedTimes(table, prior)
    at_16, between, at_256 = expected.seconds([(16,), (64,), (256,)], [0, 1, 2])
    assert at_16[0] / at_16[1] == pytest.approx(2) and at_256[0] / at_256[1] == pytest.approx(3)
    assert 2 < between[0] / between[1] < 3  # at equal distances: in between
    assert at_16[2] == np.inf and at_256[2] == pytest.approx(at_256[1])
    assert between[2] > between[1]  # nobody timed it at 16, so that nothing nearby speaks for it


def check_code(family: Family, folder: Path, shapes: list[Shape]) -> None:
    """The generated functions choose as the data does, everywhere."""
    space: dict[str, object] = {}
    exec(dispatcher_in_python(family, "choose"), space)
    in_python = space["choose"]
    assert callable(in_python)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler is not None
    source, library = folder / "choose.c", folder / "choose.so"
    source.write_text(dispatcher_in_c(family, "choose"))
    subprocess.run(
        [compiler, "-O1", "-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library], check=True
    )
    in_c = ctypes.CDLL(str(library)).choose
    in_c.argtypes = [ctypes.c_int64] * len(family.dimensions)
    for shape in shapes:
        assert in_python(*shape) == in_c(*shape) == family.choose(shape)
    outside = tuple(d.high + 1 for d in family.dimensions)
    assert in_c(*outside) == -1
    for call in (lambda: in_python(*outside), lambda: family.choose(outside)):
        with pytest.raises((ValueError, InvalidParameter), match="allowed"):
            call()


def test_where_no_schedule_is_legal_all_over_the_nearest_decides_and_is_checked(tmp_path: Path) -> None:
    """Large tiles take multiples of their half alone: in boxes of more than one shape nothing but 16 is legal."""
    ranges = [Dimension("m", 8, 256, 8), Dimension("n", 64, 128, 64)]

    def legal(shape: Shape, schedule: Schedule) -> bool:
        return shape[0] % (schedule.integer("tile_m") // 2) == 0

    def learn(table: ShapeTable) -> Prior:
        return lambda shapes, schedules: np.array([[1.0 if legal(m, s) else np.inf for s in schedules] for m in shapes])

    times = {
        shape: {s: seconds(shape, s) * shape[1] for s in SCHEDULES if legal(shape, s)} for shape in all_shapes(ranges)
    }
    family = make_family(ranges, ShapeTable.of(times), learn, most=4)
    assert all(legal(shape, family.schedules[family.choose(shape)]) for shape in all_shapes(ranges))
    check_code(family, tmp_path, list(all_shapes(ranges)))
    one = {s: 1.0 for s in SCHEDULES if s.integer("tile_m") == 256}
    large: dict[Shape, dict[Schedule, float]] = {(128, 64): one, (256, 128): one}
    with pytest.raises(InvalidParameter, match=r"not legal at 60 shapes, such as \[8, 64\]"):
        make_family(ranges, ShapeTable.of(large), learn)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_a_covering_set_is_small_and_no_exchange_improves_it(seed: int, most: int) -> None:
    regret = np.random.default_rng(seed).exponential(0.1, (30, 9))
    chosen = covering_set(regret, most, 0.0)
    assert len(set(chosen)) == len(chosen) <= most
    cost = mean_of_best(regret, chosen)
    for out in chosen:
        for other in set(range(9)) - set(chosen):
            exchanged = [*(c for c in chosen if c != out), other]
            assert mean_of_best(regret, exchanged) >= cost * (1 - 1e-6)
    assert covering_set(regret, 9, 10.0) == covering_set(regret, 1, 0.0)  # one is enough for a loose target


def test_a_covering_set_is_nearly_the_best_of_all() -> None:
    """Every set of 4 of 20 schedules is tried, on tables in which a schedule serves a range of shapes well. With
    exchanges of one for another alone, two of eight sets would not be the best."""
    over_best = []
    for seed in range(8):
        draws = np.random.default_rng(seed)
        from_best = np.abs(np.linspace(0, 1, 30)[:, None] - draws.random(20))
        regret = from_best + draws.exponential(0.05, (30, 20))
        regret[from_best > 0.4] = np.inf
        least = min(mean_of_best(regret, list(columns)) for columns in combinations(range(20), 4))
        over_best.append(mean_of_best(regret, covering_set(regret, 4, 0.0)) / least)
    assert sum(ratio < 1.001 for ratio in over_best) == 7 and max(over_best) < 1.05


def mean_of_best(regret: NDArray[np.float64], columns: list[int]) -> float:
    return float(np.minimum(regret[:, columns].min(axis=1), MISSING).mean())


def test_bad_ranges_and_documents_are_refused() -> None:
    table = table_of([(1,), (64,), (4096,)])
    for ranges, message in (
        ([], "1 to 3"),
        ([M, M], "different"),
        ([Dimension("m", 1, 1 << 20)], "larger step"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            make_family(ranges, table, always)
    with pytest.raises(InvalidParameter, match="low <= high"):
        Dimension("m", 9, 3)
    with pytest.raises(InvalidParameter, match="at least one time"):
        ShapeTable.of({(1,): {}})
    good = make_family([M], table, always).to_json()
    for name, wrong in (
        ("tree", {"schedule": 99}),
        ("tree", {"dimension": 1, "at_most": 5, "below": {"schedule": 0}, "above": {"schedule": 0}}),
        ("measured", []),
        ("dimensions", [{"name": "m", "low": 1}]),
        ("schedules", "none"),
    ):
        with pytest.raises(InvalidParameter):
            Family.from_json({**good, name: wrong})
    with pytest.raises(InvalidParameter, match="an object with"):
        Family.from_json({**good, "more": 1})
    with pytest.raises(InvalidParameter, match="no name"):
        dispatcher_in_c(make_family([M], table, always), "two words")
