"""Loads at loaded indices: descriptions, data, the reference, and kernels."""

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.core.errors import InvalidWorkload
from tilewright.core.target import Target
from tilewright.ir.expr import Expr
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload
from tilewright.tests.sketch_agreement import check_schedules

HOPPER = Target("cuda", "sm_90a", threads=132, vector_bytes=16)


def embedding(extent: int = 50, dtype: str = "float32") -> Workload:
    table, rows = te.placeholder((extent, 16), dtype, "table"), te.placeholder((3, 5), "int64", "rows")
    return te.workload(
        [te.compute((3, 5, 16), lambda b, i, j: table[te.within(rows[b, i], extent), j] * 2.0, "y")]
    )  # fmt: skip


def bag() -> Workload:
    table, rows = te.placeholder((50, 16), "float32", "table"), te.placeholder((5, 9), "int32", "rows")
    k = te.reduce_axis(9, "k")
    return te.workload([te.compute((5, 16), lambda i, j: te.sum(table[te.within(rows[i, k], 50), j], axis=k), "y")])


def product() -> Workload:
    """Gathered rows times a matrix."""
    table, rows = te.placeholder((50, 16), "float16", "table"), te.placeholder((6,), "int64", "rows")
    weight, k = te.placeholder((16, 8), "float16", "weight"), te.reduce_axis(16, "k")

    def terms(i: Expr, j: Expr) -> te.Reduction:
        return te.sum(te.cast(table[te.within(rows[i], 50), k], "float32") * te.cast(weight[k, j], "float32"), axis=k)

    total = te.compute((6, 8), terms, "total")
    return te.workload([te.compute((6, 8), lambda i, j: te.cast(total[i, j], "float16"), "y")])


def of_a_stage() -> Workload:
    """Places that the kernel computes: the row where each column is greatest, and its neighbours that wrap."""
    x, k = te.placeholder((9, 33), "float32", "x"), te.reduce_axis(33, "k")
    table = te.placeholder((33, 8), "float32", "table")
    best = te.compute((9,), lambda i: te.argmax(x[i, k], axis=k), "best")

    def before(i: Expr) -> Expr:
        return te.select(best[i] < 1, best[i] + 32, best[i] - 1)

    return te.workload([te.compute((9, 8), lambda i, j: table[te.within(before(i), 33), j], "y")])


def test_descriptions_come_back_and_names_do_not_matter() -> None:
    for workload in (embedding(), bag(), product(), of_a_stage()):
        assert workload_from_json(workload_to_json(workload)) == workload
    body = workload_to_json(embedding())["stages"][0]["body"]  # type: ignore[index]
    assert body["args"][0]["at"] == [{"within": {"load": "rows", "at": ["b", "i"]}}, "j"]
    assert workload_key(embedding()) != workload_key(embedding(51))


def test_data_are_in_bounds_and_the_reference_is_what_numpy_gives() -> None:
    workload = embedding(7)
    given = random_inputs(workload, 3)
    assert given["rows"].min() >= 0 and 4 <= given["rows"].max() < 7
    given["rows"][0, :2] = -4, 99  # what is out of bounds is the nearest end
    found = reference(workload, given)["y"]
    np.testing.assert_array_equal(found, given["table"][np.clip(given["rows"], 0, 6)].astype(np.float64) * 2.0)
    absolute, relative = tolerance(workload)["y"]
    assert absolute < 1e-30 and relative < 1e-6


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (lambda r, i: r[i], "an index must be a sum"),
        (lambda r, i: te.within(r[i], 49), "an index must be a sum"),
        (lambda r, i: te.within(r[i], 50) + 1, "an index must be a sum"),
        (lambda r, i: te.within(te.floor(te.cast(r[i], "float32")) > 1.0, 50), ""),
        (lambda r, i: te.within(r[i + 1], 50), "read at 1 to 15"),
    ],
)
def test_places_that_may_be_out_of_bounds_are_refused(place: Callable[[te.Tensor, Expr], Expr], message: str) -> None:
    table, rows = te.placeholder((50, 16), "float32", "table"), te.placeholder((15,), "int64", "rows")
    y = te.compute((15, 16), lambda i, j: table[place(rows, i), j], "y")
    if not message:
        te.workload([y])  # a bool is 0 or 1
        return
    with pytest.raises(InvalidWorkload, match=message):
        te.workload([y])


def test_a_description_of_a_place_that_is_no_integer_is_refused() -> None:
    data = workload_to_json(embedding())
    at = data["stages"][0]["body"]["args"][0]["at"]  # type: ignore[index]
    at[0] = {"within": {"const": 1.5, "dtype": "float32"}}
    with pytest.raises(InvalidWorkload, match="an index of float32") as refused:
        workload_from_json(data)
    assert refused.value.field == "/stages/0/body/args/0/at/0/within"


@pytest.mark.parametrize("make", [embedding, bag, product, of_a_stage])
def test_every_sketch_that_takes_it_computes_it(make: Callable[[], Workload]) -> None:
    workload = make()
    for target in (host_target(), HOPPER):
        names = [sketch.name for sketch in sketches_for(workload, target)]
        assert names
        for name in names:
            assert check_schedules(name, target, workload, 0, 1) == 1
