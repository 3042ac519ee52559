"""The random workloads are what the other suites take them for: legal, small, tame, and in every corner."""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from tests.random_expressions import MAX_POINTS, random_workload
from tilewright.core.dtypes import DTYPES, INPUT_DTYPES
from tilewright.ir.expr import Cast, Compare, Expr, Load, Logic, Select, Unary, walk
from tilewright.te.check import check
from tilewright.te.data import random_inputs
from tilewright.te.index import index_of
from tilewright.te.reference import reference
from tilewright.te.workload import Stage, Workload

COUNT = 300


@cache
def workloads() -> tuple[Workload, ...]:
    return tuple(random_workload(seed) for seed in range(COUNT))


def _nodes(w: Workload) -> Iterator[tuple[Stage, Expr]]:
    for stage in w.stages:
        for e in walk(stage.body):
            yield stage, e


def test_they_are_legal_small_and_repeat() -> None:
    for seed, w in enumerate(workloads()):
        assert check(w) == w
        assert 1 <= len(w.stages) <= 4
        for s in w.stages:
            assert math.prod(a.extent for a in (*s.axes, *s.reduce_axes)) <= MAX_POINTS
        if seed < 20:
            assert random_workload(seed) == w


def test_their_values_are_finite() -> None:
    for seed, w in enumerate(workloads()):
        for name, result in reference(w, random_inputs(w, seed)).items():
            assert np.isfinite(result.astype(np.float64)).all(), (seed, name)
            if w.stage(name).tensor.dtype.name == "float16":
                assert np.abs(result).max() < 30000, (seed, name)


def _features(w: Workload) -> set[str]:
    found = {f"dtype {s.tensor.dtype}" for s in w.stages} | {f"input {t.dtype}" for t in w.inputs}
    found |= {f"reducer {s.reducer}" for s in w.stages} | {f"rank {len(s.axes)}" for s in w.stages}
    read = {e.buffer.name for _, e in _nodes(w) if isinstance(e, Load)}
    found |= {"output read"} if read & set(w.outputs) else set()
    found |= {"unread input"} if any(t.name not in read for t in w.inputs) else set()
    found |= {"outputs"} if len(w.outputs) > 1 else set()
    for stage, e in _nodes(w):
        found.add(type(e).__name__)
        found |= {str(e.op)} if isinstance(e, Unary | Compare | Logic) else set()
        found |= {f"cast {e.type}"} if isinstance(e, Cast) else set()
        found |= {"guarded"} if isinstance(e, Select) and any(isinstance(x, Load) for x in walk(e.then)) else set()
        if isinstance(e, Load):
            found |= _index_features(stage, e)
    found |= {f"extent {a.extent}" for s in w.stages for a in (*s.axes, *s.reduce_axes)}
    return found


def _index_features(stage: Stage, e: Load) -> set[str]:
    order = [a.name for a in stage.axes]
    single = []
    found = set()
    for i in e.indices:
        form = index_of(i)
        assert form is not None
        affine = form.affine
        found |= {f"index {part.op}" for part, _ in form.parts}
        found |= {"constant index"} if not form.variables else set()
        found |= {"window"} if len(affine.terms) > 1 else set()
        found |= {"strided"} if any(c > 1 for c in affine.terms.values()) else set()
        found |= {"reversed"} if any(c < 0 for c in affine.terms.values()) else set()
        found |= {"offset"} if affine.constant and affine.terms else set()
        single += [order.index(v) for v in affine.variables if v in order]
    return found | ({"transposed"} if single != sorted(single) else set())


def test_they_reach_into_the_corners() -> None:
    found = set().union(*(_features(w) for w in workloads()))
    wanted = (
        {f"dtype {d}" for d in DTYPES}
        | {f"input {d}" for d in INPUT_DTYPES}
        | {f"cast {d}" for d in DTYPES if d != "bool"}
    )
    wanted |= {f"reducer {r}" for r in ("sum", "max", "min", None)} | {f"rank {n}" for n in range(4)}
    wanted |= {
        "output read",
        "index floordiv",
        "index mod",
        "unread input",
        "outputs",
        "guarded",
        "constant index",
        "window",
        "strided",
        "reversed",
    }
    wanted |= {"offset", "transposed", "Select", "extent 1", "extent 7", "extent 31", "and", "or", "not", "eq", "lt"}
    wanted |= {"exp", "log", "tanh", "erf", "sqrt", "rsqrt", "sin", "cos", "floor", "ceil", "rint", "neg", "abs"}
    assert wanted <= found, wanted - found
