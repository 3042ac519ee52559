"""What is refused, where the blame is put, and which guarded reads are understood."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tilewright.core.dtypes import boolean, float32, int32, int64
from tilewright.core.errors import InvalidWorkload
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import Const, Expr, Load, Ramp, Var, index
from tilewright.te import build as te
from tilewright.te.check import check
from tilewright.te.workload import Axis, Reducer, Stage, Workload

X = Buffer("x", (8,), float32)
Y = Buffer("y", (4,), float32)


def _of(
    body: Expr, *, dtype: Buffer = Y, axes: tuple[Axis, ...] = (Axis("i", 4),), inputs: tuple[Buffer, ...] = (X,)
) -> Workload:
    return Workload(inputs, (Stage(dtype, axes, body),), (dtype.name,))


def _read(i: Expr) -> Expr:
    return Load(X, (i,))


I = Var("i")  # noqa: E741


@pytest.mark.parametrize(
    ("workload", "field", "message"),
    [
        (_of(_read(I + 5)), "/stages/0/body/at/0", "read at 5 to 8 along a dimension of 8"),
        (_of(_read(I - 1)), "/stages/0/body/at/0", "read at -1 to 2"),
        (_of(_read(I * I)), "/stages/0/body/at/0", "an index must be"),
        (_of(_read(index(6) // I)), "/stages/0/body/at/0", "an index must be"),
        (_of(_read(I // 0)), "/stages/0/body/at/0", "an index must be"),
        (_of(_read((I + 30) // 4)), "/stages/0/body/at/0", "read at 7 to 8 along a dimension of 8"),
        (_of(_read(I % 9 * 3)), "/stages/0/body/at/0", "read at 0 to 9"),
        (_of(_read(Var("j"))), "/stages/0/body/at/0", "'j' is no axis"),
        (_of(_read(index(1 << 40))), "/stages/0/body/at/0", "allowed: at most"),
        (_of(_read(Ramp(I, 1, 4))), "/stages/0/body/at/0", "an index must be"),
        (_of(Load(X, (I, I))), "/stages/0/body/at", "1 dimensions but is read at 2"),
        (_of(Load(X, (I,), Const(True, boolean))), "/stages/0/body/load", "another tensor"),
        (_of(Load(Buffer("x", (9,), float32), (I,))), "/stages/0/body/load", "another tensor"),
        (_of(Load(Y, (I,))), "/stages/0/body/load", "neither an input nor an earlier stage"),
        (_of(I), "/stages/0/body", "the body has dtype int64, the tensor float32"),
        (_of(_read(I) + te.cast(I, int32)), "/stages/0/body", "float32 and int32; operands must have one dtype"),
        (_of(te.cast(_read(I), int32) / te.constant(2, int32)), "/stages/0/body", "div of int32"),
        (_of(te.cast(te.cast(_read(I), int32) // 0, float32)), "/stages/0/body/args/0", "positive constant"),
        (_of(te.cast(te.cast(_read(I), int32) % -1, float32)), "/stages/0/body/args/0", "positive constant"),
        (_of(te.exp(te.cast(_read(I), int32))), "/stages/0/body", "exp of int32"),
        (_of(te.select(_read(I), _read(I), 0.0)), "/stages/0/body", "the condition must be bool"),
        (
            _of(te.cast(te.cast(_read(I), boolean) + te.cast(_read(I), boolean), float32)),
            "/stages/0/body/args/0",
            "bools",
        ),
        (_of(Const(float("nan"), float32)), "/stages/0/body", "nan is no float32"),
        (_of(Const(1e39, float32)), "/stages/0/body", "is no float32"),
        (_of(Const(1, float32)), "/stages/0/body", "1 is no float32"),
        (_of(te.cast(Const(2**31, int32), float32)), "/stages/0/body/args/0", "is no int32"),
        (_of(_read(I), axes=()), "/stages/0/axes", "for shape"),
        (_of(_read(I), axes=(Axis("i", 3),)), "/stages/0/axes", "for shape"),
        (_of(_read(I), axes=(Axis("x", 4),)), "/stages/0/axes/0/name", "already the name"),
        (_of(_read(I), axes=(Axis("y", 4),)), "/stages/0/axes/0/name", "already the name"),
        (_of(_read(I), inputs=(X, X)), "/inputs/1/name", "already the name"),
        (_of(_read(I), inputs=(X, Buffer("a b", (), float32))), "/inputs/1/name", "no name"),
        (_of(_read(I), inputs=(X, Buffer("z\n", (), float32))), "/inputs/1/name", "no name"),
        (_of(_read(I), inputs=(X, Buffer("z", (0,), float32))), "/inputs/1/shape/0", "extent 0"),
        (_of(_read(I), inputs=(X, Buffer("z", (1 << 31,), float32))), "/inputs/1/shape/0", "extent"),
        (_of(_read(I), inputs=(X, Buffer("z", (1 << 20, 1 << 20), float32))), "/inputs/1/shape", "elements"),
        (_of(_read(I), inputs=(X, Buffer("z", (1,) * 9, float32))), "/inputs/1/shape", "9 dimensions"),
        (_of(_read(I), inputs=(X, Buffer("z", (1,), float32, MemoryScope.LOCAL))), "/inputs/1", "global"),
        (Workload((X,), (Stage(Y, (Axis("i", 4),), _read(I)),), ()), "/outputs", "0 outputs"),
        (Workload((X,), (Stage(Y, (Axis("i", 4),), _read(I)),), ("x",)), "/outputs/0", "not computed"),
        (Workload((X,), (Stage(Y, (Axis("i", 4),), _read(I)),), ("y", "y")), "/outputs/1", "twice"),
        (Workload((X,), (), ()), "/stages", "0 stages"),
        (replace(_of(_read(I)), constants=frozenset({"y"})), "/inputs", "constant y is no input"),
    ],
)
def test_refused(workload: Workload, field: str, message: str) -> None:
    with pytest.raises(InvalidWorkload) as caught:
        check(workload)
    assert caught.value.field == field
    assert message in caught.value.message


def test_reducers_and_their_axes_go_together() -> None:
    k = (Axis("k", 8),)
    for stage in (
        Stage(Y, (Axis("i", 4),), _read(I), k),
        Stage(Y, (Axis("i", 4),), _read(I), (), Reducer.SUM),
        Stage(Buffer("y", (4,), boolean), (Axis("i", 4),), Const(True, boolean), k, Reducer.MAX),
    ):
        with pytest.raises(InvalidWorkload) as caught:
            check(Workload((X,), (stage,), ("y",)))
        assert caught.value.field == "/stages/0/reducer"
    huge = Stage(Y, (Axis("i", 4),), _read(I), tuple(Axis(f"k{n}", 1 << 30) for n in range(2)), Reducer.SUM)
    with pytest.raises(InvalidWorkload, match="points to compute"):
        check(Workload((X,), (huge,), ("y",)))


def test_positions_have_one_axis_and_an_integer_type() -> None:
    k, at = Axis("k", 8), (Axis("i", 4),)
    y = Buffer("y", (4,), int64)
    check(Workload((X,), (Stage(y, at, _read(I), (k,), Reducer.ARGMAX),), ("y",)))
    for stage, field in (
        (Stage(y, at, _read(I), (k, Axis("r", 2)), Reducer.ARGMAX), "reduce_axes"),
        (Stage(Buffer("y", (4,), float32), at, _read(I), (k,), Reducer.ARGMIN), "dtype"),
        (Stage(y, at, Const(True, boolean), (k,), Reducer.ARGMIN), "body"),
        (Stage(y, at, _read(I), (k,), Reducer.MAX), "body"),
        (Stage(y, at, _read(I), (), Reducer.ARGMAX), "reducer"),
    ):
        with pytest.raises(InvalidWorkload) as caught:
            check(Workload((X,), (stage,), ("y",)))
        assert caught.value.field == f"/stages/0/{field}"


def test_stages_that_nobody_needs_are_refused() -> None:
    y, z = Stage(Y, (Axis("i", 4),), _read(I)), Stage(Buffer("z", (), float32), (), _read(index(0)))
    with pytest.raises(InvalidWorkload) as caught:
        check(Workload((X,), (y, z), ("y",)))
    assert caught.value.field == "/stages/1"


def test_indices_get_one_spelling() -> None:
    x = te.placeholder((9,), name="x")
    one = te.workload(te.compute((2, 3), lambda i, j: x[i * 3 + j + 1]))
    two = te.workload(te.compute((2, 3), lambda i, j: x[1 + j + 3 * i]))
    three = te.workload(te.compute((2, 3), lambda i, j: x[-(-1 - j) + (i * 2 + i) - 2 + 2]))
    assert one == two == three


def _guarded(guard: Callable[[Expr, Expr], tuple[Expr, Expr]]) -> Workload:
    """A stage over 5 by 7 that reads 4 elements at the index, where the condition holds."""
    x = te.placeholder((4,), name="x")

    def body(i: Expr, j: Expr) -> Expr:
        condition, at = guard(i, j)
        return te.select(condition, x[at], 0.0)

    return te.workload(te.compute((5, 7), body))


@pytest.mark.parametrize(
    "guard",
    [
        lambda i, j: (te.all_of(i + j - 2 >= 0, i + j - 2 < 4), i + j - 2),
        lambda i, j: (i < 4, i),
        lambda i, j: (te.equal(i, 3), i),
        lambda i, j: (te.negated(i >= 4), i),
        lambda i, j: (te.negated(te.any_of(i >= 4, j > 2)), j + 1),
        lambda i, j: (te.all_of(i * 2 + j <= 3, te.constant(True, "bool")), i * 2 + j),
        lambda i, j: (te.all_of(j * 3 < 10), j),
        lambda i, j: (te.all_of(j >= i, j < i + 4), j - i),
        lambda i, j: (i > 100, i * 1000),
        lambda i, j: (te.all_of(te.all_of(j < i, i < 4), j >= 1), j),
    ],
)
def test_guards_that_suffice_are_understood(guard: Callable[[Expr, Expr], tuple[Expr, Expr]]) -> None:
    assert _guarded(guard).stages[0].tensor.shape == (5, 7)


@pytest.mark.parametrize(
    "guard",
    [
        lambda i, j: (i < 5, i),
        lambda i, j: (te.any_of(i < 4, j < 4), i),
        lambda i, j: (te.negated(i < 4), i),
        lambda i, j: (te.not_equal(i, 4), i + 1),
        lambda i, j: (i + j < 4, i - j),
        lambda i, j: (te.cast(i, "int32") < 4, i),
    ],
)
def test_guards_that_do_not_suffice_are_refused(guard: Callable[[Expr, Expr], tuple[Expr, Expr]]) -> None:
    with pytest.raises(InvalidWorkload, match="as far as its conditions show"):
        _guarded(guard)


def test_the_other_branch_has_the_opposite_guard() -> None:
    x = te.placeholder((4,), name="x")
    te.workload(te.compute((9,), lambda i: te.select(i >= 4, 0.0, x[i])))
    te.workload(te.compute((9,), lambda i: te.select(i < 4, 0.0, te.select(i > 7, 1.0, x[i - 4]))))
    with pytest.raises(InvalidWorkload):
        te.workload(te.compute((9,), lambda i: te.select(i >= 4, x[i], 0.0)))


def test_conditions_that_leave_the_machines_integers_guard_nothing() -> None:
    """``i * 2^62 < 1`` wraps for i = 4, so it cannot be taken at its word."""
    with pytest.raises(InvalidWorkload, match="as far as"):
        _guarded(lambda i, j: (i * (1 << 62) < 1, i))
