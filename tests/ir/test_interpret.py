"""The interpreter: right results before and after the passes, and every fault it promises to find."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.ir.kernels import load, loop, padded_shift, store, tiled_matmul, vector_matmul, zero
from tilewright.core.dtypes import DTYPES, INDEX, bfloat16, boolean, float16, float32, float64, int8, int32, uint8
from tilewright.core.errors import InvalidParameter, KernelFault
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Ramp,
    ReduceLanes,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
    maximum,
)
from tilewright.ir.interpret import interpret
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.stmt import Allocate, If, Kernel, LoopKind, Stmt, seq

P, Q = Var("p"), Var("q")
SOURCE, OUT = Buffer("S", (8,), float32), Buffer("O", (8,), float32)
DATA = np.arange(8, dtype=np.float32)


def kernel(*body: Stmt, workspace: tuple[Buffer, ...] = ()) -> Kernel:
    return Kernel("k", (SOURCE,), (OUT,), workspace, seq(*body))


def run(*body: Stmt, workspace: tuple[Buffer, ...] = ()) -> np.ndarray:
    return interpret(kernel(*body, workspace=workspace), {"S": DATA})["O"]


COPY = loop("c", 8, store(OUT, (Var("c"),), load(SOURCE, Var("c"))))


@pytest.mark.parametrize("build", [tiled_matmul, vector_matmul])
@pytest.mark.parametrize("shape", [(3, 16, 5), (2, 13, 7), (1, 1, 1)])
def test_matmul_before_and_after_vectorising(
    build: Callable[[int, int, int], Kernel], shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    draw = stream(1, "matmul")
    a = draw.uniform(-1, 1, (m, k)).astype(np.float32)
    b = draw.uniform(-1, 1, (k, n)).astype(np.float32)
    expected = np.zeros((m, n), dtype=np.float32)
    for step in range(k):  # the kernel's own order, so that the bits agree
        expected += a[:, step : step + 1] * b[step : step + 1]
    built = build(m, n, k)
    for variant in (built, simplify_kernel(built)):
        result = interpret(variant, {"A": a, "B": b})["C"]
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, expected)


def test_selects_guard_loads_and_lanes_reduce() -> None:
    data = np.arange(1, 10, dtype=np.float32)
    result = interpret(padded_shift(9), {"I": data})
    padded = np.concatenate([[0], data, [0]])
    expected = padded[:-2] + padded[2:]
    np.testing.assert_array_equal(result["O"], expected)
    assert result["T"] == expected.sum()
    assert result["T"].shape == ()


def test_vector_selects_guard_loads_lane_by_lane() -> None:
    lanes = Ramp(index(0), 1, 8)
    shifted = lanes + Broadcast(index(4), 8)
    inside = Compare(CompareOp.LT, shifted, Broadcast(index(8), 8))
    other = Broadcast(const(-1.0, float32), 8)
    result = run(store(OUT, (lanes,), Select(inside, load(SOURCE, shifted), other)))
    assert result.tolist() == [4, 5, 6, 7, -1, -1, -1, -1]
    # a scalar inside a branch that no lane takes is not evaluated either, and lanes of its own are not masked
    never = Compare(CompareOp.LT, lanes, Broadcast(index(0), 8))
    outside = Broadcast(load(SOURCE, index(99)), 8)
    total = Broadcast(ReduceLanes(BinaryOp.ADD, load(SOURCE, lanes)), 8)
    result = run(store(OUT, (lanes,), Select(never, outside, Select(inside, total, other))))
    assert result.tolist() == [28, 28, 28, 28, -1, -1, -1, -1]


def test_vectors_whose_bounds_are_known_as_they_run_only() -> None:
    lanes = Ramp(P * P - P * 2 + 1, 2, 4)  # it begins at 1 and at 0
    result = run(loop("p", 2, store(OUT, (lanes,), load(SOURCE, lanes) * Broadcast(const(3.0, float32), 4))))
    assert result.tolist() == [0, 3, 6, 9, 12, 15, 18, 21]
    moved = Ramp(P * P - P * 2 + 1, 1, 7)  # what is stored was loaded before
    result = run(COPY, loop("p", 1, store(OUT, (Ramp(index(0), 1, 7),), load(OUT, moved))))
    assert result.tolist() == [1, 2, 3, 4, 5, 6, 7, 7]


def test_masked_lanes_are_zero_and_not_stored() -> None:
    lanes = Ramp(index(0), 1, 8)
    even = Compare(CompareOp.EQ, Binary(BinaryOp.MOD, lanes, Broadcast(index(2), 8)), Broadcast(index(0), 8))
    result = run(COPY, store(OUT, (lanes,), load(SOURCE, lanes, mask=even) + Broadcast(const(10.0, float32), 8)))
    assert result.tolist() == [10, 10, 12, 10, 14, 10, 16, 10]
    result = run(COPY, store(OUT, (lanes,), Broadcast(const(-1.0, float32), 8), even))
    assert result.tolist() == [-1, 1, -1, 3, -1, 5, -1, 7]


def value_of(expr: Expr, lanes: int = 1) -> np.ndarray:
    out = Buffer("V", (lanes,), expr.dtype)
    place = Ramp(index(0), 1, lanes) if lanes > 1 else index(0)
    result = interpret(Kernel("value", (), (out,), (), store(out, (place,), expr)), {})["V"]
    assert result.dtype == expr.dtype.numpy
    return result


HALF = const(2049.0, float16)  # 2049 is no float16: its neighbours are 2048 and 2050


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (const(100, int8) + 100, -56),
        (const(200, uint8) + 100, 44),
        (const(2**31 - 1, int32) + 1, -(2**31)),
        (index(2**62) * 2, -(2**63)),
        (const(-7, int32) // 2, -4),
        (const(-7, int32) % 4, 1),
        (const(7, int8) % -4, -1),
        (Cast(const(3e9, float32), int32), 2**31 - 1),
        (Cast(const(-3.9, float32), int32), -3),
        (Cast(const(-300.0, float64), int8), -128),
        (Cast(const(-3.0, float32), uint8), 0),
        (Cast(const(float("inf"), float32) - float("inf"), int32), 0),
        (Cast(const(300, int32), int8), 44),
        (Cast(const(0.5, float32), boolean), True),
        (Cast(const(2049.0, float32), float16), 2048.0),
        (Cast(Cast(const(2049.0, float32), float16) + 1.0, float32), 2049.0),
        (HALF, 2048.0),
        (Cast(const(257.0, float32), bfloat16), 256.0),
        (const(1.0, float32) + 2.0**-24, 1.0),
        (const(1.0, float64) + 2.0**-24, 1.0 + 2.0**-24),
        (const(1.0, float32) / 0.0, float("inf")),
        (Unary(UnaryOp.RSQRT, const(4.0, float32)), 0.5),
        (Unary(UnaryOp.ERF, const(0.0, float16)), 0.0),
        (Unary(UnaryOp.NEG, const(5, uint8)), 251),
        (Unary(UnaryOp.ABS, const(-128, int8)), -128),
        (Unary(UnaryOp.NOT, const(True, boolean)), False),
        (maximum(const(2, int32), const(3, int32)), 3),
        (Binary(BinaryOp.POW, const(2.0, float32), const(3.0, float32)), 8.0),
    ],
)
def test_arithmetic(expr: Expr, expected: float) -> None:
    assert value_of(expr)[0] == expected
    assert value_of(_in_lanes(expr), 4).tolist() == [expected] * 4


def _in_lanes(expr: Expr) -> Expr:
    """The same computation on vectors of four equal lanes."""
    match expr:
        case Binary(op=op, a=a, b=b):
            return Binary(op, _in_lanes(a), _in_lanes(b))
        case Unary(op=op, value=value):
            return Unary(op, _in_lanes(value))
        case Cast(value=value, type=dtype):
            return Cast(_in_lanes(value), dtype)
    return Broadcast(expr, 4)


def test_nan_spreads_through_minimum_and_maximum() -> None:
    nan = const(float("inf"), float32) - float("inf")
    assert np.isnan(value_of(maximum(nan, const(1.0, float32)))[0])
    assert np.isnan(value_of(maximum(const(1.0, float32), nan))[0])
    assert np.isnan(value_of(maximum(Broadcast(const(1.0, float32), 4), Broadcast(nan, 4)), 4)).all()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_passes_through(dtype: object) -> None:
    named = next(d for d in DTYPES.values() if d == dtype)
    source, out = Buffer("S", (2, 4), named), Buffer("O", (4, 2), named)
    data = stream(3, str(named)).integers(0, 2, (2, 4)).astype(named.numpy)
    body = loop("p", 2, loop("q", 4, store(out, (Q, P), load(source, P, Q))))
    result = interpret(Kernel("transpose", (source,), (out,), (), body), {"S": data})["O"]
    assert result.dtype == data.dtype
    np.testing.assert_array_equal(result, data.T)


def test_bfloat16_is_rounded_at_stores_only() -> None:
    source, out = Buffer("S", (2,), bfloat16), Buffer("O", (), bfloat16)
    total = load(source, index(0)) + load(source, index(1)) - load(source, index(0))
    data = np.array([256, 1.5], dtype=ml_dtypes.bfloat16)
    assert interpret(Kernel("k", (source,), (out,), (), store(out, (), total)), {"S": data})["O"] == 1.5


LOCAL = Buffer("L", (4,), float32, MemoryScope.LOCAL)
WORK = Buffer("W", (8,), float32)
LANES = Ramp(index(4), 1, 8)
FAULTS: dict[str, tuple[Kernel, str]] = {
    "load out of bounds": (
        kernel(COPY, loop("p", 8, store(OUT, (P,), load(SOURCE, P + 1)))),
        r"S\[8\] is out of bounds \[8\] at p=7",
    ),
    "store out of bounds": (
        kernel(COPY, loop("p", 8, store(OUT, (P * 2 - 6,), load(SOURCE, P)))),
        r"O\[-6\] is out of bounds \[8\] at p=0",
    ),
    "vector load out of bounds": (
        kernel(COPY, store(OUT, (Ramp(index(0), 1, 8),), load(SOURCE, LANES))),
        r"S\[8\] in lane 4 is out of bounds",
    ),
    "vector store out of bounds": (
        kernel(COPY, store(OUT, (LANES,), load(SOURCE, Ramp(index(0), 1, 8)))),
        r"O\[8\] in lane 4 is out of bounds",
    ),
    "vector load out of bounds in the last iteration": (
        kernel(COPY, loop("p", 3, store(OUT, (Ramp(index(0), 1, 5),), load(SOURCE, Ramp(P * P, 1, 5))))),
        r"S\[8\] in lane 4 is out of bounds \[8\] at p=2",
    ),
    "vector store before the first element": (
        kernel(COPY, loop("p", 2, store(OUT, (Ramp(P * P - P * 2, 1, 4),), load(SOURCE, Ramp(index(0), 1, 4))))),
        r"O\[-1\] in lane 0 is out of bounds \[8\] at p=1",
    ),
    "second dimension out of bounds though the element exists": (
        Kernel(
            "k",
            (),
            (Buffer("O", (2, 4), float32),),
            (),
            loop("p", 8, store(Buffer("O", (2, 4), float32), (index(0), P), zero())),
        ),
        r"O\[0, 4\] is out of bounds \[2, 4\]",
    ),
    "workspace read before it is written": (
        kernel(loop("p", 8, store(OUT, (P,), load(WORK, P))), workspace=(WORK,)),
        r"W\[0\] is read before it is written",
    ),
    "vector read of what is not written": (
        kernel(
            loop("p", 5, store(WORK, (P,), zero())),
            store(OUT, (Ramp(index(0), 1, 8),), load(WORK, Ramp(index(0), 1, 8))),
            workspace=(WORK,),
        ),
        r"W\[5\] is read before it is written",
    ),
    "output read before it is written": (
        kernel(loop("p", 8, store(OUT, (P,), load(OUT, P) + load(SOURCE, P)))),
        r"O\[0\] is read before it is written",
    ),
    "allocation forgotten at its next entry": (
        kernel(
            COPY,
            loop(
                "p",
                8,
                Allocate(
                    LOCAL,
                    seq(
                        If(P < index(1), store(LOCAL, (index(2),), zero())),
                        store(OUT, (P,), load(LOCAL, index(2))),
                    ),
                ),
            ),
        ),
        r"L\[2\] is read before it is written at .*p=1",
    ),
    "output left unwritten": (
        kernel(loop("p", 6, store(OUT, (P,), zero()))),
        r"output O: 2 of 8 elements left unwritten, first O\[6\]",
    ),
    "two iterations write": (
        kernel(COPY, loop("p", 8, store(OUT, (P // 2,), zero()), kind=LoopKind.PARALLEL)),
        r"iterations of the parallel loop p race on O\[0\] at .*p=1",
    ),
    "one iteration reads what another wrote": (
        kernel(COPY, loop("p", 7, store(OUT, (P + 1,), load(OUT, P)), kind=LoopKind.PARALLEL)),
        r"parallel loop p race on O\[1\]",
    ),
    "one iteration writes what another read": (
        kernel(COPY, loop("p", 7, store(OUT, (P,), load(OUT, P + 1)), kind=LoopKind.PARALLEL)),
        r"parallel loop p race on O\[1\]",
    ),
    "a local buffer shared by the iterations": (
        kernel(
            Allocate(
                LOCAL,
                loop(
                    "p",
                    8,
                    store(LOCAL, (index(0),), load(SOURCE, P)),
                    store(OUT, (P,), load(LOCAL, index(0))),
                    kind=LoopKind.PARALLEL,
                ),
            )
        ),
        r"parallel loop p race on L\[0\]",
    ),
    "lanes race too": (
        kernel(
            COPY,
            loop("p", 2, store(OUT, (Ramp(P * 3, 1, 4),), load(SOURCE, Ramp(P * 4, 1, 4))), kind=LoopKind.PARALLEL),
        ),
        r"parallel loop p race on O\[3\]",
    ),
    "integer divided by zero": (
        kernel(COPY, loop("p", 2, store(OUT, (P,), Cast(index(5) // P, float32)))),
        r"5 floordiv 0 at p=0",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    broken, message = FAULTS[name]
    with pytest.raises(KernelFault, match=message):
        interpret(broken, {buffer.name: DATA for buffer in broken.inputs})


def test_what_is_no_race() -> None:
    # private allocations, runs of one loop after another, reads shared by all, a nest of parallel loops
    shared = loop("q", 4, store(OUT, (P * 4 + Q,), load(SOURCE, Q) + load(WORK, index(0))), kind=LoopKind.PARALLEL)
    body = (
        loop("w", 8, store(WORK, (Var("w"),), zero())),
        loop("r", 3, loop("p", 2, shared, kind=LoopKind.PARALLEL)),
        loop(
            "t",
            8,
            Allocate(
                LOCAL,
                seq(store(LOCAL, (index(0),), load(WORK, index(3))), store(OUT, (Var("t"),), load(LOCAL, index(0)))),
            ),
            kind=LoopKind.PARALLEL,
        ),
    )
    assert run(*body, workspace=(WORK,)).tolist() == [0.0] * 8


def test_inputs_must_fit() -> None:
    with pytest.raises(InvalidParameter, match="input S is missing"):
        interpret(kernel(COPY), {})
    with pytest.raises(InvalidParameter, match=r"input S is float64\[8\], not float32\[8\]"):
        interpret(kernel(COPY), {"S": DATA.astype(np.float64)})
    with pytest.raises(InvalidParameter, match="T is no input"):
        interpret(kernel(COPY), {"S": DATA, "T": DATA})


def test_indices_loaded_from_memory() -> None:
    places = Buffer("I", (8,), INDEX)
    body = loop("p", 8, store(OUT, (P,), load(SOURCE, load(places, P))))
    order = np.array([3, 1, 2, 0, 7, 6, 5, 4])
    built = Kernel("gather", (SOURCE, places), (OUT,), (), body)
    assert interpret(built, {"S": DATA, "I": order})["O"].tolist() == order.tolist()
    with pytest.raises(KernelFault, match=r"S\[8\] is out of bounds"):
        interpret(built, {"S": DATA, "I": order + 1})
