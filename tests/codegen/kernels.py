"""Kernels for the tests of backends and devices, written by hand. Together they have every node of the IR."""

from collections.abc import Callable

from tilewright.core.dtypes import (
    DTYPES,
    DType,
    bfloat16,
    boolean,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import (
    FLOAT_ONLY,
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
)
from tilewright.ir.stmt import Allocate, For, If, Kernel, LoopKind, Stmt, Store, seq

N = 48
"""The kernels of operators work on vectors of this many elements, a multiple of every width used here."""


def serial(var: str, extent: int, *body: Stmt) -> For:
    return For(var, extent, LoopKind.SERIAL, seq(*body))


def parallel(var: str, extent: int, *body: Stmt) -> For:
    return For(var, extent, LoopKind.PARALLEL, seq(*body))


def lanes_at(start: Expr, lanes: int, stride: int = 1) -> Expr:
    return start if lanes == 1 else Ramp(start, stride, lanes)


def spread(value: Expr, lanes: int) -> Expr:
    return value if lanes == 1 else Broadcast(value, lanes)


def elementwise(inputs: dict[str, DType], values: Callable[[list[Expr], int], list[Expr]], lanes: int) -> Kernel:
    """Return a kernel of ``O0[i], O1[i], … = values(loads of the inputs at i, lanes)``."""
    sources = [Buffer(name, (N,), dtype) for name, dtype in inputs.items()]
    at = lanes_at(Var("i") * lanes, lanes)
    results = values([Load(s, (at,)) for s in sources], lanes)
    outputs = [Buffer(f"O{n}", (N,), e.dtype) for n, e in enumerate(results)]
    stores = [Store(o, (at,), e) for o, e in zip(outputs, results, strict=True)]
    return Kernel("elementwise", tuple(sources), tuple(outputs), (), serial("i", N // lanes, *stores))


def binary_operators(dtype: DType, lanes: int) -> Kernel:
    def values(given: list[Expr], _: int) -> list[Expr]:
        a, b = given
        if dtype.is_bool:
            return [Logic(LogicOp.AND, a, b), Logic(LogicOp.OR, a, b), Unary(UnaryOp.NOT, a)]
        wanted = [BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX]
        # A divisor is never 0, and its size keeps integers and floats from overflowing.
        one = spread(const(1, dtype), lanes)
        positive = Binary(BinaryOp.MAX, Unary(UnaryOp.ABS, b) if dtype.kind != "uint" else b, one)
        results: list[Expr] = [Binary(op, a, b) for op in wanted]
        if dtype.is_float:
            results += [Binary(BinaryOp.DIV, a, positive)]
        else:
            for op in (BinaryOp.FLOORDIV, BinaryOp.MOD):
                results += [Binary(op, a, positive), Binary(op, a, spread(const(7, dtype), lanes))]
                results += [Binary(op, a, spread(const(8, dtype), lanes))]
                if dtype.kind == "int":
                    results += [
                        Binary(op, a, Unary(UnaryOp.NEG, positive)),
                        Binary(op, a, spread(const(-3, dtype), lanes)),
                    ]
        results += [Compare(op, a, b) for op in CompareOp]
        return results

    return elementwise({"A": dtype, "B": dtype}, values, lanes)


def unary_operators(dtype: DType, lanes: int) -> Kernel:
    def values(given: list[Expr], _: int) -> list[Expr]:
        (a,) = given
        results: list[Expr] = [Unary(UnaryOp.NEG, a), Unary(UnaryOp.ABS, a)]
        if dtype.is_float:
            positive = Binary(BinaryOp.ADD, Unary(UnaryOp.ABS, a), spread(const(0.5, dtype), lanes))
            rooted = (UnaryOp.SQRT, UnaryOp.RSQRT, UnaryOp.LOG)
            results += [Unary(op, positive if op in rooted else a) for op in sorted(FLOAT_ONLY)]
            results += [Binary(BinaryOp.POW, positive, a), Binary(BinaryOp.POW, a, spread(const(2.0, dtype), lanes))]
        return results

    return elementwise({"A": dtype}, values, lanes)


def casts(source: DType, lanes: int) -> Kernel:
    """Return a kernel that casts to every dtype."""

    def values(given: list[Expr], _: int) -> list[Expr]:
        return [Cast(given[0], target) for target in DTYPES.values()]

    return elementwise({"A": source}, values, lanes)


def guarded_loads(lanes: int) -> Kernel:
    """Return a kernel whose loads would leave their buffer without the ``select`` around them: scalar, by lane,
    uniform."""
    source = Buffer("A", (N,), float32)
    outputs = [Buffer(f"O{n}", (N,), float32) for n in range(4)]
    start = Var("i") * lanes
    at = lanes_at(start, lanes)
    zero, far = spread(const(0.0, float32), lanes), spread(index(5), lanes)
    low = Select(Compare(CompareOp.GE, at, far), Load(source, (Binary(BinaryOp.SUB, at, far),)), zero)
    high_at = Binary(BinaryOp.ADD, at, far)
    inside = Compare(CompareOp.LT, high_at, spread(index(N), lanes))
    high = Select(inside, Load(source, (high_at,)), Unary(UnaryOp.NEG, Load(source, (at,))))
    uniform = Select(
        spread(Compare(CompareOp.LT, start, index(lanes)), lanes),
        zero,
        spread(Load(source, (start - lanes,)), lanes) + Load(source, (at,)),
    )
    nested = Select(inside, Select(Compare(CompareOp.GE, at, far), low + high, Load(source, (high_at,))), zero)
    stores = [Store(o, (at,), e) for o, e in zip(outputs, (low, high, uniform, nested), strict=True)]
    return Kernel("guarded", (source,), tuple(outputs), (), parallel("i", N // lanes, *stores))


def strides(lanes: int) -> Kernel:
    """Return a kernel of loads and stores whose lanes are reversed, strided, repeated, transposed, or without a
    stride."""
    matrix = Buffer("A", (lanes, N), float32)
    line = Buffer("B", (4 * N,), float32)
    names = ("reversed", "every_2nd", "every_3rd", "every_4th", "far", "transposed", "folded", "repeated", "scattered")
    outputs = {n: Buffer(n, (N, lanes), float32) for n in names}
    i = Var("i")
    every = Ramp(index(0), 1, lanes)
    row = (i, every)
    loads: dict[str, Expr] = {
        "reversed": Load(line, (Ramp(i + (lanes - 1), -1, lanes),)),
        "every_2nd": Load(line, (Ramp(i, 2, lanes),)),
        "every_3rd": Load(line, (Ramp(i, 3, lanes),)),
        "every_4th": Load(line, (Ramp(i, 4, lanes),)),
        "far": Load(line, (Ramp(i, 7, lanes),)),
        "transposed": Load(matrix, (every, i)),
        "folded": Load(line, (Binary(BinaryOp.FLOORDIV, Ramp(i, 1, lanes), Broadcast(index(2), lanes)),)),
        "repeated": Load(line, (Broadcast(i * 2, lanes),)),
    }
    stores: list[Stmt] = [Store(outputs[n], row, e) for n, e in loads.items()]
    back = Store(outputs["scattered"], (i, Ramp(index(lanes - 1), -1, lanes)), Load(line, (Ramp(i, 1, lanes),)))
    return Kernel("strides", (matrix, line), tuple(outputs.values()), (), serial("i", N, *stores, back))


def masked_strides(lanes: int) -> Kernel:
    """Return a kernel of loads of every second, third and fourth element, of which the last vector has a few lanes
    alone: those that end with the tensor."""
    length = 3 * lanes - (lanes + 1) // 2
    at = Ramp(Var("i") * lanes, 1, lanes)
    inside = Compare(CompareOp.LT, at, Broadcast(index(length), lanes))
    lines = {step: Buffer(f"A{step}", ((length - 1) * step + 1,), float32) for step in (2, 3, 4)}
    outputs = tuple(Buffer(f"O{step}", (length,), float32) for step in lines)
    stores = [
        Store(output, (at,), Load(line, (Ramp(Var("i") * (lanes * step), step, lanes),), inside), inside)
        for output, (step, line) in zip(outputs, lines.items(), strict=True)
    ]
    return Kernel("masked_strides", tuple(lines.values()), outputs, (), serial("i", 3, *stores))


def masks(lanes: int, dtype: DType) -> Kernel:
    """Return a kernel of masked loads and stores at the end of a row: contiguous, strided, and scalar ones."""
    length = 3 * lanes - 1
    source, straight = Buffer("A", (length,), dtype), Buffer("O0", (length,), dtype)
    column, alone = Buffer("O1", (length, 2), dtype), Buffer("O2", (4 * lanes,), dtype)
    at = Ramp(Var("i") * lanes, 1, lanes)
    mask = Compare(CompareOp.LT, at, Broadcast(index(length), lanes))
    value = Load(source, (at,), mask)
    single = Var("j")
    inside = single < length
    body = seq(
        serial(
            "i", 3, Store(straight, (at,), value, mask), Store(column, (at, Broadcast(index(1), lanes)), value, mask)
        ),
        serial("k", length, Store(column, (Var("k"), index(0)), Load(source, (Var("k"),)))),
        serial("j", 4 * lanes, Store(alone, (single,), Load(source, (single,), inside))),
        serial("m", 4 * lanes, Store(alone, (Var("m"),), const(1, dtype), Var("m") < 2)),
    )
    return Kernel("masks", (source,), (straight, column, alone), (), body)


def lane_reductions(dtype: DType, lanes: int) -> Kernel:
    """Return a kernel that reduces the lanes of each row by every operator."""
    rows = 5
    source = Buffer("A", (rows, lanes), dtype)
    operations = (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)
    outputs = [Buffer(f"O{n}", (rows,), dtype) for n in range(len(operations))]
    data = Load(source, (Var("r"), Ramp(index(0), 1, lanes)))
    stores = [Store(o, (Var("r"),), ReduceLanes(op, data)) for o, op in zip(outputs, operations, strict=True)]
    return Kernel("reduce", (source,), tuple(outputs), (), parallel("r", rows, *stores))


def matmul(m: int, n: int, k: int, lanes: int, dtype: DType = float32) -> Kernel:
    """Return a product of parallel rows and whole vectors of columns. ``n`` is a multiple of ``lanes``."""
    a, b, c = Buffer("A", (m, k), dtype), Buffer("B", (k, n), dtype), Buffer("C", (m, n), dtype)
    acc = Buffer("acc", (lanes,), dtype, MemoryScope.REGISTER)
    columns, every = Ramp(Var("j") * lanes, 1, lanes), Ramp(index(0), 1, lanes)
    product = Broadcast(Load(a, (Var("i"), Var("k"))), lanes) * Load(b, (Var("k"), columns))
    body = Allocate(
        acc,
        seq(
            Store(acc, (every,), Broadcast(const(0, dtype), lanes)),
            serial("k", k, Store(acc, (every,), Load(acc, (every,)) + product)),
            Store(c, (Var("i"), columns), Load(acc, (every,))),
        ),
    )
    return Kernel("matmul", (a, b), (c,), (), parallel("i", m, serial("j", n // lanes, body)))


def large_locals() -> Kernel:
    """Return a kernel with local buffers of 1 MiB: one that a parallel loop reads, and one in each of its
    iterations."""
    size = 1 << 18
    source, result = Buffer("A", (8,), float32), Buffer("O", (8, 8), float32)
    shared, own = (
        Buffer("shared", (size,), float32, MemoryScope.LOCAL),
        Buffer("own", (size,), float32, MemoryScope.LOCAL),
    )
    fill = serial("s", 8, Store(shared, (Var("s") * (size // 8),), Load(source, (Var("s"),)) * 2.0))
    write = serial("w", 8, Store(own, (Var("w") * (size // 8) + 3,), Load(shared, (Var("w") * (size // 8),)) + 1.0))
    read = serial("t", 8, Store(result, (Var("p"), Var("t")), Load(own, (Var("t") * (size // 8) + 3,))))
    return Kernel(
        "large",
        (source,),
        (result,),
        (),
        Allocate(shared, seq(fill, parallel("p", 8, Allocate(own, seq(write, read))))),
    )


def nested_parallel() -> Kernel:
    """Return a kernel with nested parallel loops, conditions, a workspace, and names that LLVM knows."""
    source, result = Buffer("begin", (6, 10), int32), Buffer("end", (6, 10), int32)
    between = Buffer("args", (6, 10), int32)
    i, j, p, q = Var("entry"), Var("env"), Var("p"), Var("t")
    first = parallel("entry", 6, parallel("env", 10, Store(between, (i, j), Load(source, (i, j)) * 3)))
    even = Compare(CompareOp.EQ, (p + q) % 2, index(0))
    second = parallel(
        "p",
        6,
        serial(
            "t",
            10,
            Store(result, (p, q), const(-1, int32)),
            If(even, If(q > 2, Store(result, (p, q), Load(between, (index(5) - p, q))))),
        ),
    )
    return Kernel("memcpy", (source,), (result,), (between,), seq(first, second))


KERNELS: dict[str, Kernel] = {
    **{f"binary_{d}_{n}": binary_operators(d, n) for d in DTYPES.values() for n in (1, 8)},
    **{f"unary_{d}_{n}": unary_operators(d, n) for d in DTYPES.values() if d not in (boolean, uint8) for n in (1, 16)},
    **{f"casts_{d}_{n}": casts(d, n) for d in DTYPES.values() for n in (1, 16)},
    **{f"guarded_{n}": guarded_loads(n) for n in (1, 4, 8, 12)},
    **{f"strides_{n}": strides(n) for n in (2, 4, 8, 12, 16)},
    **{f"masked_strides_{n}": masked_strides(n) for n in (2, 4, 8, 16)},
    **{f"masks_{d}_{n}": masks(n, d) for d in (float32, bfloat16, int8, float64) for n in (4, 8, 12)},
    **{f"reduce_{d}_{n}": lane_reductions(d, n) for d in (float32, float16, float64, int64, uint8) for n in (8, 12)},
    "matmul": matmul(5, 48, 17, 16),
    "matmul_24": matmul(3, 48, 9, 24, float64),
    "large_locals": large_locals(),
    "nested_parallel": nested_parallel(),
}
"""It maps names to kernels, all of which are final: no loop of them is vectorised or unrolled."""
