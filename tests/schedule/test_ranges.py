"""Reductions whose ranges are read from memory, such as products with sparse matrices: each thread goes through its
range alone."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.gpu.tiles import H200, legal_schedule_of
from tilewright.codegen.lowering import finish
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import For, walk_statements
from tilewright.ir.verify import verify
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import load_module
from tilewright.schedule.cpu.ranges import CPU_RANGES
from tilewright.schedule.gpu.loops.space import CUDA_LOOPS as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.schedule.tile.ranges import range_of
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

ROWS, TERMS = 40, 300
_INSIDE = "e >= int64(P[r]) and e < int64(P[r + 1])"
CASES = {
    "a sparse matrix and a vector": f"V: float32[{TERMS}]\nC: int32[{TERMS}]\nP: int32[{ROWS + 1}]\nX: float32[20]\n"
    f"Y[r < {ROWS}] = sum over e < {TERMS} of select({_INSIDE}, V[e] * X[min(max(int64(C[e]), 0), 19)], 0.0)",
    "a sparse matrix and a matrix": f"V: float32[{TERMS}]\nP: int32[{ROWS + 1}]\nX: float32[{TERMS}, 6]\n"
    f"Y[r < {ROWS}, j < 6] = sum over e < {TERMS} of select({_INSIDE}, V[e] * X[e, j], 0.0)",
    "the greatest of each range, and another condition": f"V: float32[{TERMS}]\nP: int32[{ROWS + 1}]\n"
    f"Y[r < {ROWS}] = max over e < {TERMS} of select({_INSIDE} and V[e] < 0.5, V[e], -inf)",
    "ends that belong to ranges": f"V: float32[{TERMS}]\nP: int32[{ROWS}]\nQ: int32[{ROWS}]\n"
    f"Y[r < {ROWS}] = sum over e < {TERMS} of select(int64(P[r]) < e and e <= int64(Q[r]), V[e], 0.0)",
    "lengths": f"V: float32[{ROWS}, {TERMS}]\nP: int32[{ROWS}]\n"
    f"Y[r < {ROWS}] = sum over e < {TERMS} of select(e < int64(P[r]), abs(V[r, e]) * float32(e), 0.0)",
}


@pytest.mark.parametrize("threads", [1, 32])
@pytest.mark.parametrize("case", CASES)
def test_ranges_of_any_length_are_reduced(case: str, threads: int) -> None:
    """Some are empty, some go beyond the last term, and some begin behind their end."""
    workload, inputs = _inputs_of(case)
    schedule = legal_schedule_of(SKETCH, workload, H200, threads_per_output=threads)
    kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
    verify(kernel)
    _assert_same(interpret(kernel, inputs)["Y"], reference(workload, inputs)["Y"])


@pytest.mark.parametrize("case", CASES)
def test_a_processor_goes_through_them_as_well(case: str) -> None:
    workload, inputs = _inputs_of(case)
    target = host_target("llvm")
    assert next(iter(sketches_for(workload, target))).name == "cpu_ranges"
    module = load_module(workload, CPU_RANGES.space(workload, target).schedule(0), target)
    (got,) = module(*(inputs[b.name] for b in workload.inputs))
    _assert_same(got, reference(workload, inputs)["Y"])


def _inputs_of(case: str) -> tuple[Workload, dict[str, NDArray[Any]]]:
    workload, rng = parse_workload(CASES[case]), np.random.default_rng(3)
    return workload, {b.name: _drawn(b.shape, b.dtype.is_float, rng) for b in workload.inputs}


def _assert_same(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), rtol=1e-5, atol=1e-4)


def _drawn(shape: tuple[int, ...], is_float: bool, rng: np.random.Generator) -> NDArray[Any]:
    if is_float:
        return rng.standard_normal(shape).astype(np.float32)
    return np.cumsum(rng.integers(-6, 20, shape)).astype(np.int32) - 5


def test_what_lies_outside_a_range_is_skipped() -> None:
    """A result of a hundred thousand terms takes a few loops of a dozen iterations, not one of as many."""
    text = "V: float32[100000]\nP: int32[1001]\nY[r < 1000] = sum over e < 100000 of "
    workload = parse_workload(text + _terms("V[e]"))
    kernel = SKETCH.lower(workload, H200, SKETCH.space(workload, H200).schedule(0))
    assert max(s.extent for s in walk_statements(kernel.body) if isinstance(s, For)) <= 20


def _terms(value: str) -> str:
    return f"select({_INSIDE}, {value}, 0.0)"


def test_what_is_no_range() -> None:
    """Bounds that are known before, terms that are not neutral outside, and short axes."""
    head = "V: float32[1000]\nP: int32[41]\nY[r < 40] = sum over e < 1000 of "
    assert range_of(parse_workload(head + _terms("V[e]")).stages[0]) is not None
    for terms in (
        "select(e >= 3 * r and e < 3 * r + 5, V[e], 0.0)",
        f"select({_INSIDE}, V[e], 1.0)",
        "select(int64(P[r]) == e, V[e], 0.0)",
    ):
        assert range_of(parse_workload(head + terms).stages[0]) is None
    short = "V: float32[100]\nP: int32[41]\nY[r < 40] = sum over e < 100 of " + _terms("V[e]")
    assert range_of(parse_workload(short).stages[0]) is None
