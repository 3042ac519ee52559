"""Small workloads, one for each shape of nest that primitives meet."""

from tilewright.ir.expr import Expr
from tilewright.te import build as te
from tilewright.te.workload import Workload


def elementwise() -> Workload:
    """B = A * 2 on 5 x 6."""
    a = te.placeholder((5, 6), name="A")
    return te.workload([te.compute((5, 6), lambda i, j: a[i, j] * 2, name="B")])


def product() -> Workload:
    """C = A B, 5 x 7 x 6."""
    a, b = te.placeholder((5, 7), name="A"), te.placeholder((7, 6), name="B")
    k = te.reduce_axis(7, name="k")
    return te.workload([te.compute((5, 6), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")])


def biased_product() -> Workload:
    """D = tanh(A B + bias), 5 x 7 x 6."""
    a, b = te.placeholder((5, 7), name="A"), te.placeholder((7, 6), name="B")
    bias = te.placeholder((6,), name="bias")
    k = te.reduce_axis(7, name="k")
    c = te.compute((5, 6), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.workload([te.compute((5, 6), lambda x, y: te.tanh(c[x, y] + bias[y]), name="D")])


def row_sums() -> Workload:
    """S[i] = sum of a row of 3 x 20."""
    a = te.placeholder((3, 20), name="A")
    k = te.reduce_axis(20, name="k")
    return te.workload([te.compute((3,), lambda i: te.sum(a[i, k], axis=k), name="S")])


def total(extent: int = 100) -> Workload:
    """T = sum of 100 numbers, a tensor without dimensions."""
    a = te.placeholder((extent,), name="A")
    k = te.reduce_axis(extent, name="k")
    return te.workload([te.compute((), lambda: te.sum(a[k], axis=k), name="T")])


def softmax() -> Workload:
    """D = softmax of the rows of 4 x 21."""
    a = te.placeholder((4, 21), name="A")
    k, r = te.reduce_axis(21, name="k"), te.reduce_axis(21, name="r")
    m = te.compute((4,), lambda a0: te.max(a[a0, k], axis=k), name="M")
    e = te.compute((4, 21), lambda b0, b1: te.exp(a[b0, b1] - m[b0]), name="E")
    s = te.compute((4,), lambda c0: te.sum(e[c0, r], axis=r), name="S")
    return te.workload([te.compute((4, 21), lambda i, j: e[i, j] / s[i], name="D")])


def padded_windows() -> Workload:
    """C[j] = sum of A padded by one on both sides, in windows of three with stride two."""
    a = te.placeholder((9,), name="A")
    k = te.reduce_axis(3, name="k")

    def padding(i: Expr) -> Expr:
        return te.select(te.all_of(i >= 1, i < 10), a[i - 1], 0.0)

    p = te.compute((11,), padding, name="P")
    return te.workload([te.compute((5,), lambda j: te.sum(p[j * 2 + k], axis=k), name="C")])


def neighbours() -> Workload:
    """B[i] = P[i - 1] + P[i + 1] where those exist, with P = A * A."""
    a = te.placeholder((11,), name="A")
    p = te.compute((11,), lambda h: a[h] * a[h], name="P")

    def body(i: Expr) -> Expr:
        return te.select(i >= 1, p[i - 1], 0.0) + te.select(i < 10, p[i + 1], 0.0)

    return te.workload([te.compute((11,), body, name="B")])


def two_outputs() -> Workload:
    """B = P + 1 and C = P * 3 with P = A * A: one tensor read by two others."""
    a = te.placeholder((5,), name="A")
    p = te.compute((5,), lambda h: a[h] * a[h], name="P")
    b = te.compute((5,), lambda i: p[i] + 1, name="B")
    return te.workload([b, te.compute((5,), lambda j: p[j] * 3, name="C")])
