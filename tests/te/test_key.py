"""Keys see structure and nothing else."""

import json
import random
from dataclasses import replace

import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_expressions import random_workload
from tilewright.te import build as te
from tilewright.te.check import check
from tilewright.te.json import WORKLOAD_SCHEMA, workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.rename import renamed
from tilewright.te.workload import Workload

WORKLOAD_VALIDATOR = jsonschema_rs.Draft202012Validator(WORKLOAD_SCHEMA)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.randoms(use_true_random=False))
def test_names_do_not_matter(seed: int, draw: random.Random) -> None:
    w = random_workload(seed)
    names = [t.name for t in w.inputs] + [s.name for s in w.stages]
    names += [a.name for s in w.stages for a in (*s.axes, *s.reduce_axes)]
    new = [f"{draw.choice('azAZ_')}{n}" for n in range(len(names))]
    draw.shuffle(new)
    other = check(renamed(w, dict(zip(names, new, strict=True))))
    assert workload_key(other) == workload_key(w)
    assert renamed(other, dict(zip(new, names, strict=True))) == w


def test_different_structures_have_different_keys() -> None:
    seen: dict[str, Workload] = {}
    for seed in range(200):
        w = random_workload(seed)
        other = seen.setdefault(workload_key(w), w)
        assert other == w or len(other.stages) == 1  # a single stage may well come twice under other names


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_what_is_constant_matters(seed: int, some: set[int], others: set[int]) -> None:
    w = random_workload(seed)
    one, other = (
        replace(w, constants=frozenset(t.name for n, t in enumerate(w.inputs) if n in s)) for s in (some, others)
    )
    assert (workload_key(one) == workload_key(other)) == (one.constants == other.constants)
    assert (workload_key(one) == workload_key(w)) == (not one.constants)
    again = renamed(one, {t.name: f"other_{t.name}" for t in w.inputs})
    assert len(again.constants) == len(one.constants) and workload_key(check(again)) == workload_key(one)
    assert workload_from_json(json.loads(json.dumps(workload_to_json(one)))) == one
    WORKLOAD_VALIDATOR.validate(workload_to_json(one))


def _product(extent: int, dtype: str = "float32", *, swapped: bool = False, name: str = "C") -> Workload:
    a, b = te.placeholder((4, extent), dtype, "A"), te.placeholder((extent, 5), dtype, "B")
    k = te.reduce_axis(extent)
    c = te.compute((4, 5), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name)
    return te.workload(c, inputs=[b, a] if swapped else [a, b])


def test_shapes_dtypes_and_the_order_of_inputs_matter() -> None:
    keys = {
        workload_key(w)
        for w in (_product(8), _product(9), _product(8, "float64"), _product(8, swapped=True), _product(8, name="D"))
    }
    assert len(keys) == 4


def test_the_key_is_pinned() -> None:
    assert workload_key(_product(8)) == "e38f3a3d0ea80bdf0a566d3e07fde73f9a612bebbb9ae2deb92b8293ffe084cf"
