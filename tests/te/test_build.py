"""Writing workloads: names, order, and the mistakes one makes."""

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.core.errors import InvalidWorkload
from tilewright.ir.expr import Expr
from tilewright.te import build as te


def test_a_matrix_product_reads_as_written() -> None:
    a, b = te.placeholder((4, 8), name="A"), te.placeholder((8, 5), name="B")
    k = te.reduce_axis(8, name="k")
    w = te.workload(te.compute((4, 5), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C"))
    assert [t.name for t in w.inputs] == ["A", "B"] and w.outputs == ("C",)
    stage = w.stage("C")
    assert [(x.name, x.extent) for x in stage.axes + stage.reduce_axes] == [("i", 4), ("j", 5), ("k", 8)]


def test_unnamed_tensors_of_one_shape_stay_apart() -> None:
    x, y = te.placeholder((3,)), te.placeholder((3,))
    w = te.workload(te.compute((3,), lambda i: x[i] - y[i] * x[i]))
    assert [t.name for t in w.inputs] == ["input0", "input1"] and w.outputs == ("stage0",)


def test_axes_that_share_a_name_are_numbered_and_avoid_tensors() -> None:
    i = te.placeholder((3,), name="i")
    k = te.reduce_axis(3, "j")
    s = te.compute((3,), lambda j: te.sum(i[k] * i[j], axis=k), "s")
    w = te.workload(te.compute((3,), lambda i: s[i], "t"))
    assert [a.name for st in w.stages for a in (*st.axes, *st.reduce_axes)] == ["j", "j_1", "i_1"]


def test_stages_stand_after_what_they_read_and_once() -> None:
    x = te.placeholder((2,), name="x")
    a = te.compute((2,), lambda i: x[i] + 1.0, "a")
    b = te.compute((2,), lambda i: a[i] * a[1 - i], "b")
    c = te.compute((2,), lambda i: b[i] + a[i], "c")
    w = te.workload([c, a])
    assert [s.name for s in w.stages] == ["a", "b", "c"] and w.outputs == ("c", "a")


def test_a_long_chain_of_stages_does_not_recurse() -> None:
    def after(source: te.Tensor, name: str) -> te.Tensor:
        return te.compute((1,), lambda i: source[i] + 1.0, name)

    t = te.placeholder((1,), name="x")
    for n in range(200):
        t = after(t, f"s{n}")
    assert len(te.workload(t).stages) == 200


def test_inputs_can_be_ordered_and_unread() -> None:
    x, y, z = (te.placeholder((1,), name=n) for n in "xyz")
    out = te.compute((1,), lambda i: x[i] + y[i])
    assert [t.name for t in te.workload(out, inputs=[z, y, x]).inputs] == ["z", "y", "x"]
    with pytest.raises(InvalidWorkload, match="y is read but not among the inputs"):
        te.workload(out, inputs=[x])


def test_constants_are_inputs() -> None:
    x, y, z = (te.placeholder((1,), name=n) for n in "xyz")
    out = te.compute((1,), lambda i: x[i] + y[i])
    assert te.workload(out, constants=[y]).constants == {"y"}
    with pytest.raises(InvalidWorkload, match="constant z is no input"):
        te.workload(out, constants=[y, z])


def test_zero_dimensions() -> None:
    x = te.placeholder((), name="x")
    k = te.reduce_axis(1)
    w = te.workload(te.compute((), lambda: te.max(x[()] * 2.0, axis=k)))
    assert w.stages[0].tensor.shape == () and w.stages[0].axes == ()


def test_axes_of_variadic_functions_are_numbered() -> None:
    x = te.placeholder((2, 3), name="x")

    def body(first: Expr, *rest: Expr) -> Expr:
        return x[(first, *rest)]

    assert [a.name for a in te.workload(te.compute((2, 3), body)).stages[0].axes] == ["first", "i1"]


def test_mistakes_are_explained() -> None:
    x, y = te.placeholder((3,), name="x"), te.placeholder((3,), name="x")
    k = te.reduce_axis(3, "k")
    with pytest.raises(InvalidWorkload, match="two tensors are called x"):
        te.workload(te.compute((3,), lambda i: x[i] + y[i]))
    with pytest.raises(InvalidWorkload, match="1 dimensions but is read at 2"):
        x[0, 1]
    with pytest.raises(InvalidWorkload, match="uses the axis k, which is not one of its own"):
        te.workload(te.compute((3,), lambda i: x[k]))
    with pytest.raises(InvalidWorkload, match="takes 2 indices"):
        te.compute((3,), lambda i, j: x[i])
    with pytest.raises(InvalidWorkload, match="gave None"):
        te.compute((3,), lambda i: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidWorkload, match="output x is an input"):
        te.workload(x)
    with pytest.raises(InvalidWorkload, match="float8"):
        te.placeholder((3,), "float8")
    with pytest.raises(InvalidWorkload, match="no dtype"):
        te.select(k < 1, 1, 2)
    with pytest.raises(InvalidWorkload, match="at least one"):
        te.all_of()


def test_shared_subexpressions_that_explode_are_refused_quickly() -> None:
    x = te.placeholder((3,), name="x")

    def body(i: Expr) -> Expr:
        e: Expr = x[i]
        for _ in range(60):
            e = e * e
        return e

    with pytest.raises(InvalidWorkload, match="more than 4096 nodes"):
        te.workload(te.compute((3,), body))


def test_a_chain_beyond_the_depth_is_refused() -> None:
    x = te.placeholder((3,), name="x")

    def body(i: Expr) -> Expr:
        e: Expr = x[i]
        for _ in range(300):
            e = e + 1.0
        return e

    with pytest.raises(InvalidWorkload, match="nested deeper than 100"):
        te.workload(te.compute((3,), body))


X = te.placeholder((3, 3), name="x")
WRONG: dict[str, Any] = {"text": "1", "half": 0.5}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda i, j: X[i, j] if X[i, j] > 0.0 else 0.0, "neither true nor false; use select"),
        (lambda i, j: te.select(0 < i < j, X[i, j], 0.0), "neither true nor false"),
        (lambda i, j: te.select(te.equal(i, j) and i < 2, X[i, j], 0.0), "neither true nor false"),
        (lambda i, j: X[i, j] + WRONG["text"], "'1' is neither an expression nor a number"),
        (lambda i, j: X[WRONG["text"], j], "'1' is neither an expression nor a number"),
        (lambda i, j: X[WRONG["half"], j], "0.5 is no int64"),
        (lambda i, j: X[i + float("inf"), j], "inf is no int64"),
    ],
)
def test_what_python_would_decide_while_it_is_written_is_refused(body: Callable[..., Expr], message: str) -> None:
    with pytest.raises(InvalidWorkload, match=message):
        te.compute((3, 3), body)


def test_a_shape_is_a_sequence_and_an_output_a_tensor() -> None:
    with pytest.raises(InvalidWorkload, match=r"shape is 8; allowed: a sequence of extents, like \(8,\)"):
        te.placeholder(8)  # type: ignore[arg-type]
    with pytest.raises(InvalidWorkload, match="shape is 8"):
        te.compute(8, lambda i: i)  # type: ignore[arg-type]
    with pytest.raises(InvalidWorkload, match="output 3 is no tensor"):
        te.workload([3])  # type: ignore[list-item]
