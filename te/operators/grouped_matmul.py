"""Grouped matrix product: groups of rows, each with a matrix of its own (mixture of experts)."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.expr import Expr
from ..build import Tensor, cast, compute, min, placeholder, reduce_axis, sum, within, workload
from ..groups import MAX_SKEW, group_of_row, group_starts, in_group
from ..workload import Workload
from .epilogue import epilogue_of, epilogue_parameters
from .matmul import product
from .operator import Operator, accumulation_parameter, constant_parameter, precision_parameter
from .parameter import FLOATS, Flag, Integer, Number, Parameter, Values, dtype_parameter


def row_groups(ends: Tensor, rows: int) -> Tensor:
    """Return the group of each of ``rows`` rows, of which ``ends`` says where each ends (``te.groups``)."""
    e = reduce_axis(ends.shape[0], "e")
    return compute((rows,), lambda i: min(group_of_row(ends[e], i, e, ends.shape[0]), axis=e), "group")


def _build(v: Values) -> Workload:
    groups, m, n, k, dtype = (v.integer("groups"), v.integer("m"), v.integer("n"), v.integer("k"), v.text("dtype"))
    epilogue, transposed = epilogue_of(v, "D"), v.flag("transpose_b")
    wide, r = epilogue.wide, reduce_axis(k, "k")
    a = placeholder((m, k), dtype, "A")
    b = placeholder((groups, n, k) if transposed else (groups, k, n), dtype, "B")
    ends = placeholder((groups,), "int32", "ends")
    group = row_groups(ends, m)

    def term(i: Expr, j: Expr) -> Expr:
        g = within(group[i], groups)
        return in_group(group[i], groups, cast(a[i, r], wide)) * cast(b[g, j, r] if transposed else b[g, r, j], wide)

    name = "C" if epilogue.is_nothing else "total"
    total = compute((m, n), lambda i, j: sum(term(i, j), axis=r), name)
    c, further = epilogue.apply(total, "C", (1,))
    constants, skew = [b] if v.flag("constant_weights") else [], v.number("skew")
    return workload(
        c, [a, b, ends, *further], constants, precision=v.text("precision"), skews={ends: skew} if skew else None
    )


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    epilogue, a = epilogue_of(v, "D"), inputs["A"]
    b = inputs["B"].swapaxes(1, 2) if v.flag("transpose_b") else inputs["B"]
    total = np.zeros((v.integer("m"), v.integer("n")), epilogue.wide.numpy)
    for group, (start, stop) in enumerate(pairwise(group_starts(inputs["ends"], v.integer("m")))):
        total[start:stop] = product(a[start:stop], b[group], epilogue.wide)
    return (epilogue.numpy(total, inputs, (-1,)),)


GROUPED_MATMUL = Operator(
    name="grouped_matmul",
    summary="C[i, j] = activation(sum over k of A[i, k] * B[g(i), k, j] + D[j] + R[i, j]), where g(i) is the first "
    "group that ends behind row i; sums of rows behind all ends are 0",
    parameters=(
        Parameter("groups", "how many groups of rows there are (experts)", Integer()),
        Parameter("m", "rows of A and C, those of all groups", Integer()),
        Parameter("n", "columns of C", Integer()),
        Parameter("k", "length of the sums", Integer()),
        dtype_parameter(*FLOATS),
        Parameter("transpose_b", "whether B is stored as [groups, n, k]", Flag(), False),
        Parameter(
            "skew",
            "the groups that are measured with have sizes in proportion to rank^-skew; 0: they are alike on average",
            Number(0.0, MAX_SKEW),
            0.0,
        ),
        accumulation_parameter("float32", "float64"),
        *epilogue_parameters(name="D"),
        constant_parameter("B"),
        precision_parameter("ieee", "tf32", "tf32x3", "bf16x6", "bf16x9"),
    ),
    examples=(
        {"groups": 3, "m": 11, "n": 7, "k": 13},
        {"groups": 1, "m": 1, "n": 17, "k": 1},
        {"groups": 5, "m": 31, "n": 8, "k": 4, "transpose_b": True, "skew": 1.0},
        {"groups": 4, "m": 3, "n": 5, "k": 7, "bias": True, "activation": "relu", "dtype": "float16"},
        {"groups": 3, "m": 150, "n": 72, "k": 80, "skew": 0.7, "dtype": "bfloat16"},
    ),
    build=_build,
    baseline=_numpy,
)
