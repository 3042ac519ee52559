"""Workloads of ranges of rows: which static workloads have one in common, and that it computes what they do."""

from typing import Any

import numpy as np
import pytest

from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.dynamic import at_extent
from tilewright.te.key import workload_key
from tilewright.te.reference import reference
from tilewright.te.row_range import range_of_rows, row_range, with_joined_rows
from tilewright.te.workload import Workload


def norm(b: int, s: int) -> Workload:
    x, w = te.placeholder((b, s, 8), "float32", "X"), te.placeholder((8,), "float32", "W")
    r = te.reduce_axis(8)
    total = te.compute((b, s), lambda i, j: te.sum(x[i, j, r] * x[i, j, r], r), "T")
    y = te.compute((b, s, 8), lambda i, j, k: x[i, j, k] * te.rsqrt(total[i, j] + 1) * w[k], "Y")
    return te.workload(y)


def linear(b: int, s: int) -> Workload:
    x, w = te.placeholder((b, s, 8), "float32", "X"), te.placeholder((6, 8), "float32", "W")
    k = te.reduce_axis(8)
    return te.workload(te.compute((b, s, 6), lambda i, j, n: te.sum(x[i, j, k] * w[n, k], k), "Y"))


def positions(b: int, s: int) -> Workload:
    x, p = te.placeholder((b, s, 8), "float32", "X"), te.placeholder((s, 8), "float32", "P")
    return te.workload(te.compute((b, s, 8), lambda i, j, k: x[i, j, k] + p[j, k], "Y"))


def shifted(b: int, s: int) -> Workload:
    x = te.placeholder((b + 1, s, 8), "float32", "X")
    return te.workload(te.compute((b, s, 8), lambda i, j, k: x[i + 1, j, k], "Y"))


def last_rows(b: int, s: int) -> Workload:
    x = te.placeholder((b * s, 8), "float32", "X")
    return te.workload(te.compute((b * s, 8), lambda i, k: x[b * s - 1 - i, k], "Y"))


def columns(b: int, s: int) -> Workload:
    x = te.placeholder((b * s, 8), "float32", "X")
    i = te.reduce_axis(b * s)
    return te.workload(te.compute((8,), lambda k: te.sum(x[i, k], i), "Y"))


SHAPES = [(b, s) for b in (8, 11, 13, 16) for s in (33, 40, 57, 61, 64)]


@pytest.mark.parametrize("make", [norm, linear])
def test_twenty_shapes_have_one_workload(make: Any) -> None:
    keys = set()
    for b, s in SHAPES:
        found = row_range(make(b, s), {b, b * s}, lambda wide: True)
        assert found is not None and found.rows == b * s
        joined = at_extent(found.workload, found.rows)
        assert joined == with_joined_rows(make(b, s))
        keys.add(workload_key(found.workload))
    assert len(keys) == 1


@pytest.mark.parametrize("make", [norm, linear])
def test_joined_rows_compute_the_same(make: Any) -> None:
    workload = make(3, 5)
    joined = with_joined_rows(workload)
    assert joined is not None
    inputs = random_inputs(workload, 0)
    flat = {t.name: inputs[t.name].reshape(t.shape) for t in joined.inputs}
    (want,), (got,) = reference(workload, inputs).values(), reference(joined, flat).values()
    np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_rows_that_are_told_apart_are_not_joined() -> None:
    keys = set()
    for b in (2, 3, 64):
        found = row_range(positions(b, 40), {b, 40, b * 40}, lambda wide: True)
        assert found is not None and found.rows == b
        assert at_extent(found.workload, b) == positions(b, 40)
        keys.add(workload_key(found.workload))
    assert len(keys) == 1


@pytest.mark.parametrize("make", [shifted, last_rows, columns])
def test_no_range_where_rows_are_moved_or_reduced(make: Any) -> None:
    assert row_range(make(4, 10), {4, 8, 40}, lambda wide: True) is None


def test_neither_static_rows_nor_those_without_a_class_have_a_range() -> None:
    assert row_range(norm(4, 10), {5}, lambda wide: True) is None
    assert row_range(norm(4, 10), {4, 40}, lambda wide: False) is None


def test_ranges() -> None:
    assert [range_of_rows(n) for n in (1, 64, 65, 1024, 1025)] == [
        (64, 16), (64, 16), (256, 128), (1024, 512), (4096, 2048)
    ]  # fmt: skip
