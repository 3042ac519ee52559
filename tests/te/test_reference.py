"""The reference against independent computations, and its fast roads against its slow one."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.random_expressions import other_reducers, random_workload
from tilewright.core.errors import InvalidParameter
from tilewright.ir.expr import Const, Expr
from tilewright.ir.interpret import interpret
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.te import build as te
from tilewright.te import contraction as contraction_module
from tilewright.te import reference as reference_module
from tilewright.te.contraction import contraction_of
from tilewright.te.data import random_inputs
from tilewright.te.erf import erf
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.positions import without_positions
from tilewright.te.reference import chunks, reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Reducer, Workload

CONTRACTIONS = ("matmul", "batch_matmul", "linear", "conv2d", "conv2d_transpose")


@pytest.mark.parametrize("block", range(4))
def test_random_expressions_agree_with_the_interpreter(block: int) -> None:
    for seed in range(25 * block, 25 * block + 25):
        w = random_workload(seed)
        inputs = random_inputs(w, seed)
        wanted, limits = reference(w, inputs), tolerance(w)
        for name, result in interpret(loop_nest(w), inputs).items():
            absolute, relative = limits[name]
            a, b = np.asarray(result, np.float64), np.asarray(wanted[name], np.float64)
            np.testing.assert_allclose(a, b, relative, absolute, err_msg=f"{seed} {name}")


def test_positions_and_products_agree_with_the_interpreter() -> None:
    found: set[Reducer | None] = set()
    for seed in range(150):
        w = other_reducers(random_workload(seed))
        if w is None:
            continue
        found |= {s.reducer for s in w.stages}
        inputs = random_inputs(w, seed)
        wanted, limits = reference(w, inputs), tolerance(w)
        for name, result in interpret(loop_nest(w), inputs).items():
            absolute, relative = limits[name]
            a, b = np.asarray(result, np.float64), np.asarray(wanted[name], np.float64)
            np.testing.assert_allclose(a, b, relative, absolute, err_msg=f"{seed} {name}")
    assert {Reducer.PROD, Reducer.ARGMAX, Reducer.ARGMIN} <= found


def _part(inputs: dict[str, Any], least: int) -> int:
    """How many elements a part has, so that an example has several parts and a large one has no thousands."""
    largest: int = max(array.size for array in inputs.values())
    return max(least, largest // 8)


def _slow(w: Workload, inputs: dict[str, Any], patch: pytest.MonkeyPatch, chunk: int) -> dict[str, Any]:
    with patch.context() as p:
        p.setattr(reference_module, "contraction_of", lambda stage: None)
        p.setattr(reference_module, "_CHUNK", chunk)
        return reference(w, inputs)


@pytest.mark.parametrize("name", OPERATORS)
def test_threads_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_module, "_WORTH_THREADS", 1)
    for case in OPERATORS[name].examples:
        w = OPERATORS[name].workload(case)
        inputs = random_inputs(w, 1)
        monkeypatch.setattr(contraction_module, "_LIMIT", _part(inputs, 100))
        one, three = reference(w, inputs, threads=1), reference(w, inputs, threads=3)
        for output in w.outputs:
            np.testing.assert_allclose(one[output], three[output], 1e-13, 1e-13)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("chunk", [3, 1000])
def test_positions_are_those_of_the_first_best(dtype: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few different values, so that there are ties within a chunk and across chunks."""
    monkeypatch.setattr(reference_module, "_CHUNK", chunk)
    monkeypatch.setattr(reference_module, "_LEAST_PART", 1)
    x = np.random.default_rng(0).integers(-2, 3, (5, 23, 4)).astype(dtype)
    a, k = te.placeholder((5, 23, 4), dtype, "A"), te.reduce_axis(23)
    best = te.compute((5, 4), lambda i, j: te.argmax(a[i, k, j], k), "best")
    r = te.reduce_axis(23)
    worst = te.compute((4, 5), lambda i, j: te.argmin(a[j, r, i], r, "int32"), "worst")
    w = te.workload([best, worst])
    for results in (reference(w, {"A": x}), interpret(loop_nest(w), {"A": x})):
        assert [results[n].dtype.name for n in ("best", "worst")] == ["int64", "int32"]
        np.testing.assert_array_equal(results["best"], x.argmax(axis=1))
        np.testing.assert_array_equal(results["worst"], x.argmin(axis=1).T)


def test_positions_of_infinities_and_nan() -> None:
    a, k = te.placeholder((4, 3), "float32", "A"), te.reduce_axis(3)
    w = te.workload(te.compute((4,), lambda i: te.argmax(a[i, k], k), "Y"))
    inf, nan = math.inf, math.nan
    x = np.array([[-inf, -inf, -inf], [-inf, inf, inf], [nan, nan, nan], [1, nan, 0]], np.float32)
    for results in (reference(w, {"A": x}), interpret(loop_nest(w), {"A": x})):
        assert list(results["Y"][:2]) == [0, 1]
        assert all(0 <= position < 3 for position in results["Y"])


def test_positions_of_computed_values_agree_on_what_is_compared() -> None:
    """The values are rounded to float16 once, so the place where the greatest stands is found again."""
    a, k = te.placeholder((7, 61), "float16", "A"), te.reduce_axis(61)
    w = te.workload(te.compute((7,), lambda i: te.argmax(a[i, k] * a[6 - i, k] + a[i, k], k), "Y"))
    plain = without_positions(w)
    assert plain.compared == {"Y_values"}
    assert [s.reducer for s in plain.workload.stages] == [None, Reducer.MAX, Reducer.MIN]
    x = random_inputs(w, 0)
    result = interpret(loop_nest(w), x)["Y"]
    wide = x["A"].astype(np.float32)
    values = (wide * wide[::-1] + wide).astype(np.float16)
    np.testing.assert_array_equal(result, values.argmax(axis=1))


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_products_agree_with_plain_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in OPERATORS[name].few_cases():
        w = OPERATORS[name].workload(case)
        inputs = random_inputs(w, 1)
        fast = reference(w, inputs)
        monkeypatch.setattr(contraction_module, "_LIMIT", _part(inputs, 7))
        cut = reference(w, inputs)
        monkeypatch.undo()
        slow = _slow(w, inputs, monkeypatch, _part(inputs, 50))
        for output in w.outputs:
            np.testing.assert_allclose(
                fast[output], slow[output], 1e-12, 1e-12 if case["dtype"] != "bfloat16" else 1e-2
            )
            np.testing.assert_allclose(fast[output], cut[output], 1e-12, 1e-12 if case["dtype"] != "bfloat16" else 1e-2)


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_large_products_take_the_fast_road(name: str) -> None:
    for case in OPERATORS[name].cases():
        stages = OPERATORS[name].workload(case).stages
        sums = [s for s in stages if s.reduce_axes and min(s.tensor.shape) > 1 and s.reduce_axes[0].extent > 1]
        assert all(contraction_of(s) is not None for s in sums)


def test_random_expressions_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        w = random_workload(seed)
        inputs = random_inputs(w, seed)
        whole, pieces = reference(w, inputs), _slow(w, inputs, monkeypatch, 11)
        for name in w.outputs:
            assert whole[name].dtype == pieces[name].dtype
            np.testing.assert_allclose(whole[name].astype(float), pieces[name].astype(float), 1e-9, 1e-9)


@pytest.mark.parametrize("extents", [(), (1,), (7,), (3, 5), (2, 1, 9), (4, 3, 2, 5)])
@pytest.mark.parametrize("limit", [1, 2, 6, 1000])
def test_chunks_tile_the_box(extents: tuple[int, ...], limit: int) -> None:
    count = np.zeros(extents, int)
    for chunk in chunks(extents, limit):
        place = tuple(slice(*r) for r in chunk)
        assert count[place].size <= limit
        count[place] += 1
    assert (count == 1).all()


def _one(e: Expr) -> Any:
    """The value of an expression without axes, as a zero-dimensional stage."""
    w = te.workload(te.compute((), lambda: e, "y"))
    result = reference(w, {})["y"]
    assert result.shape == ()
    return result[()]


@pytest.mark.parametrize(
    ("value", "given", "wanted", "result"),
    [
        (2.7, "float32", "int8", 2),
        (-2.7, "float32", "int8", -2),
        (300.0, "float32", "int8", 127),
        (-1e30, "float32", "int32", -(2**31)),
        (-3.0, "float32", "uint8", 0),
        (math.inf, "float64", "int64", 2**63 - 1),
        (-math.inf, "float64", "int64", -(2**63)),
        (9.3e18, "float64", "int64", 2**63 - 1),
        (200, "int32", "int8", -56),
        (-1, "int8", "uint8", 255),
        (255, "uint8", "int32", 255),
        (2049, "int32", "float16", 2048.0),
        (0.1, "float32", "bfloat16", float(ml_dtypes.bfloat16(np.float32(0.1)))),
        (1e30, "float32", "float16", math.inf),
        (0.1, "float32", "float64", float(np.float32(0.1))),
        (-0.5, "float32", "bool", True),
        (0, "int8", "bool", False),
        (True, "bool", "float32", 1.0),
        (True, "bool", "int64", 1),
    ],
)
def test_casts(value: float, given: str, wanted: str, result: float) -> None:
    constant = te.constant(value, given)
    got = _one(te.cast(constant, wanted))
    assert got == result and type(result)(got) == result


def test_not_a_number_casts_to_zero() -> None:
    nan = te.log(te.constant(-1.0, "float32"))
    assert _one(te.cast(nan, "int32")) == 0


def test_integers_wrap() -> None:
    big = te.constant(2**31 - 1, "int32")
    assert _one(big + 1) == -(2**31)
    assert _one(big * big) == 1
    assert _one(te.absolute(te.constant(-128, "int8"))) == -128
    assert _one(-te.constant(1, "uint8")) == 255
    assert _one(te.constant(-7, "int32") // 2) == -4
    assert _one(te.constant(-7, "int32") % 3) == 2


def test_integer_sums_wrap_on_every_road() -> None:
    a, b = te.placeholder((3, 40), "int32", "A"), te.placeholder((40, 2), "int32", "B")
    k = te.reduce_axis(40)
    w = te.workload(te.compute((3, 2), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C"))
    draw = np.random.default_rng(0)
    for largest in (1000, 2**31 - 1):  # the second leaves what float64 holds exactly
        inputs = {
            "A": draw.integers(-largest, largest, (3, 40), np.int32),
            "B": draw.integers(-largest, largest, (40, 2), np.int32),
        }
        exact = inputs["A"].astype(object) @ inputs["B"].astype(object)
        wrapped = [[(int(v) + 2**31) % 2**32 - 2**31 for v in row] for row in exact]
        result = reference(w, inputs)["C"]
        assert result.dtype == np.int32 and result.tolist() == wrapped
    x = te.placeholder((40,), "int8", "X")
    total = te.workload(te.compute((), lambda: te.sum(x[k], axis=k), "y"))
    assert reference(total, {"X": np.full(40, 100, np.int8)})["y"] == (4000 + 128) % 256 - 128


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("int8", -128, 127), ("uint8", 0, 255), ("int64", -(2**63), 2**63 - 1)]
)
def test_extremes_start_from_the_end_of_the_range(dtype: str, low: int, high: int) -> None:
    x = te.placeholder((5,), dtype, "X")
    k, r = te.reduce_axis(5), te.reduce_axis(5)
    top = te.compute((), lambda: te.max(x[k], axis=k), "top")
    bottom = te.compute((), lambda: te.min(x[r], axis=r), "bottom")
    w = te.workload([top, bottom])
    for value in (low, high):
        result = reference(w, {"X": np.full(5, value, x.dtype.numpy)})
        assert result["top"] == value and result["bottom"] == value


def test_infinities_pass_through_reductions() -> None:
    x = te.placeholder((4,), name="X")
    k = te.reduce_axis(4)
    masked = te.compute((), lambda: te.max(te.select(k > 3, x[k], Const(-math.inf, x.dtype)), axis=k), "y")
    assert reference(te.workload(masked), {"X": np.ones(4, np.float32)})["y"] == -math.inf


def test_windows_strides_reversals_and_guards() -> None:
    x = te.placeholder((9,), name="X")
    k = te.reduce_axis(3)
    windows = te.compute((4,), lambda i: te.sum(x[i * 2 + k], axis=k), "windows")
    backwards = te.compute((9,), lambda i: x[8 - i], "backwards")
    shifted = te.compute((12,), lambda i: te.select(te.all_of(i >= 2, i < 11), x[i - 2], -1.0), "shifted")
    diagonal = te.compute((2, 3), lambda i, j: x[i * 3 + j + 1], "diagonal")
    v = np.arange(9, dtype=np.float32)
    result = reference(te.workload([windows, backwards, shifted, diagonal]), {"X": v})
    assert result["windows"].tolist() == [3.0, 9.0, 15.0, 21.0]
    assert result["backwards"].tolist() == v[::-1].tolist()
    assert result["shifted"].tolist() == [-1.0, -1.0, *v.tolist(), -1.0]
    assert result["diagonal"].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("min(max(y + r - 1, 0), 5)", "min(max(x * 2 + s - 1, 0), 8)"),
        ("min(max(5 - abs(5 - abs(y + r - 2)), 0), 5)", "(x * 2 + s + 8) % 9"),
        ("5 - y", "min(max(x * 3 - s, 0), 8)"),
        ("min(max(y - x, 0), 5)", "min(x * 2 + s, 8)"),
        ("3", "(x * 2 + s) // 2"),
    ],
)
def test_places_that_are_read_along_each_dimension_by_itself(row: str, column: str) -> None:
    """The border of an image, and what is read backwards or twice."""
    axes = "y < 5, x < 5" if row == "5 - y" else "y < 6, x < 4"
    text = f"X: float32[6, 9]\nY[{axes}] = sum over r < 3, s < 3 of select(y + r >= 1, X[{row}, {column}], 0.5)"
    w = parse_workload(text)
    inputs = random_inputs(w, 1)
    np.testing.assert_allclose(reference(w, inputs)["Y"], interpret(loop_nest(w), inputs)["Y"], 1e-6, 1e-6)


def test_outputs_may_be_read_again_and_inputs_ignored() -> None:
    x, unread = te.placeholder((2,), name="X"), te.placeholder((3,), name="unread")
    a = te.compute((2,), lambda i: x[i] * x[i], "a")
    b = te.compute((2,), lambda i: a[i] + a[1 - i], "b")
    w = te.workload([b, a], inputs=[x, unread])
    result = reference(w, {"X": np.array([1.0, 2.0], np.float32), "unread": np.zeros(3, np.float32)})
    assert list(result) == ["b", "a"] and result["a"].tolist() == [1.0, 4.0] and result["b"].tolist() == [5.0, 5.0]


def test_axes_and_bools_as_data() -> None:
    x = te.placeholder((2, 3), "bool", "X")
    w = te.workload(te.compute((2, 3), lambda i, j: te.all_of(x[i, j], te.not_equal(i % 2, j)), "y"))
    result = reference(w, {"X": np.array([[True, True, True], [True, True, False]])})["y"]
    assert result.dtype == bool and result.tolist() == [[False, True, True], [True, False, False]]


def test_inputs_of_any_layout_are_taken_and_wrong_ones_named() -> None:
    w = OPERATORS["transpose"].workload({"shape": [3, 5], "axes": [1, 0]})
    x = np.asfortranarray(np.arange(15, dtype=np.float32).reshape(3, 5))
    np.testing.assert_array_equal(reference(w, {"X": x})["Y"], x.T)
    for wrong in ({}, {"X": x.T}, {"X": x.astype(np.float64)}):
        with pytest.raises(InvalidParameter) as caught:
            reference(w, wrong)
        assert caught.value.field == "X"


def test_erf_is_accurate_to_a_few_units() -> None:
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.uniform(-7, 7, 20000), draw.normal(0, 1e-5, 1000), [0.0, -0.0, 1e-310, 6.0, 1e300]])
    wanted = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(erf(x), wanted, rtol=1e-14, atol=0)
    assert np.isnan(erf(np.array([math.nan])))[0]
    assert erf(np.array([math.inf, -math.inf])).tolist() == [1.0, -1.0]


def test_an_axis_of_one_element_that_no_index_names_is_no_obstacle() -> None:
    a, b = te.placeholder((1, 5), name="A"), te.placeholder((3, 5), name="B")
    k = te.reduce_axis(5, "k")
    product = te.workload(te.compute((1, 3), lambda i, j: te.sum(a[0, k] * b[j, k], axis=k), "C"))
    found = contraction_of(product.stages[0])
    assert found is not None and found.rows == ("i",) and found.columns == ("j",)
    data = random_inputs(product, 0)
    np.testing.assert_allclose(reference(product, data)["C"], data["A"] @ data["B"].T, rtol=1e-5)
