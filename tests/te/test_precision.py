"""The precision of workloads, and inputs that are floats of 8 bits."""

import numpy as np
import pytest

from tilewright.core.dtypes import float8_e4m3fn, float8_e5m2
from tilewright.core.errors import InvalidParameter, InvalidWorkload
from tilewright.core.precision import PRECISIONS
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import load_module
from tilewright.schedule.sketches import SKETCHES
from tilewright.te import build as te
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.text import workload_text
from tilewright.te.tolerance import tolerance

SHAPE = {"m": 8, "n": 8, "k": 64}


def test_a_precision_is_part_of_the_identity_and_ieee_leaves_old_ones_as_they_are() -> None:
    plain = OPERATORS["matmul"].workload(SHAPE)
    data = workload_to_json(plain)
    assert "precision" not in data and workload_from_json(data).precision == "ieee"
    keys = {workload_key(plain)}
    for name in ("tf32", "tf32x3", "bf16x6", "bf16x9"):
        other = OPERATORS["matmul"].workload({**SHAPE, "precision": name})
        assert workload_from_json(workload_to_json(other)) == other
        assert f"precision: {name}" in workload_text(other)
        keys.add(workload_key(other))
    assert len(keys) == 5
    explicit = workload_from_json({**data, "precision": "ieee"})
    assert workload_key(explicit) == workload_key(plain)


def test_tolerances_follow_the_precision() -> None:
    limits = [
        tolerance(OPERATORS["matmul"].workload({**SHAPE, "precision": p}))["C"][1] for p in ("ieee", "tf32x3", "tf32")
    ]
    assert limits[0] <= limits[1] < 1e-4 < limits[2] < 0.1
    scaled = [
        tolerance(OPERATORS["scaled_matmul"].workload({"m": 8, "n": 8, "k": 4096, "result": "float32", "precision": p}))
        for p in ("ieee", "fast_accumulation")
    ]
    assert scaled[0]["C"][0] < scaled[1]["C"][0] / 8


def test_unknown_ones_are_refused_by_name() -> None:
    data = workload_to_json(OPERATORS["matmul"].workload(SHAPE))
    with pytest.raises(InvalidWorkload, match="'fp4' is no precision; allowed: ieee, tf32") as caught:
        workload_from_json({**data, "precision": "fp4"})
    assert caught.value.field == "/precision"
    with pytest.raises(InvalidParameter) as refused:
        OPERATORS["matmul"].workload({**SHAPE, "precision": "fast_accumulation"})
    assert refused.value.field == "precision"


def test_pairs_of_planes_come_from_the_smallest_on() -> None:
    for precision in PRECISIONS.values():
        assert [sum(p) for p in precision.pairs] == sorted((sum(p) for p in precision.pairs), reverse=True)
    assert len(PRECISIONS["bf16x9"].pairs) == 9 and len(PRECISIONS["bf16x6"].pairs) == 6
    assert PRECISIONS["tf32x3"].pairs == ((0, 1), (1, 0), (0, 0))


@pytest.mark.parametrize("dtype", [float8_e4m3fn, float8_e5m2], ids=str)
def test_every_float_of_8_bits_is_read_as_what_it_is(dtype: object) -> None:
    x = te.placeholder((256,), dtype, "X")  # type: ignore[arg-type]
    workload = te.workload(te.compute((256,), lambda i: te.cast(x[i], "float32"), "Y"))
    values = np.arange(256, dtype=np.uint8).view(x.dtype.numpy)
    (sketch,) = (s for s in SKETCHES.values() if s.name == "cpu_loops")
    target = host_target("llvm")
    schedule = sketch.space(workload, target).schedule(0)
    wanted = values.astype(np.float32)
    np.testing.assert_array_equal(load_module(workload, schedule, target)(values)[0], wanted)
    np.testing.assert_array_equal(reference(workload, {"X": values})["Y"], wanted)


def test_floats_of_8_bits_are_not_computed_with() -> None:
    x = te.placeholder((4,), "float8_e4m3fn", "X")
    for body in (lambda i: x[i], lambda i: x[i] + x[i], lambda i: te.cast(te.cast(x[i], "float32"), "float8_e5m2")):
        with pytest.raises(InvalidWorkload, match="float8"):
            te.workload(te.compute((4,), body, "Y"))
