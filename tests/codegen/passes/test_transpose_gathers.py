"""Gathers of neighbouring columns become register transposes, and others stay."""

import numpy as np
import pytest

from tests.schedule.gpu.tiles import assert_agrees
from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.passes.pipeline import run_passes
from tilewright.codegen.passes.transpose_gathers import transpose_gathers
from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer
from tilewright.ir.cpu import Transpose
from tilewright.ir.expr import Broadcast, Compare, CompareOp, Load, Ramp, Var, index
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import For, Kernel, LoopKind, Store, seq, walk_statements
from tilewright.ir.verify import verify
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import Module, load_module
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS

VNNI = "x86-64+avx512f+avx512bw+avx512vl+avx512vnni"


def _columns(columns: list[int], lanes: int, *, masked: bool = False) -> Kernel:
    """``C[n, i*lanes + l] = A[i*lanes + l, columns[n]]`` for all lanes."""
    a, c = Buffer("A", (3 * lanes, 40), float32), Buffer("C", (len(columns), 3 * lanes), float32)
    rows = Ramp(Var("i") * lanes, 1, lanes)
    mask = Compare(CompareOp.LT, rows, Broadcast(index(3 * lanes), lanes)) if masked else None
    stores = [Store(c, (index(n), rows), Load(a, (rows, index(k)), mask)) for n, k in enumerate(columns)]
    return Kernel("columns", (a,), (c,), (), For("i", 3, LoopKind.SERIAL, seq(*stores)))


def _blocks(kernel: Kernel) -> list[tuple[int, int]]:
    return [(s.rows, s.columns) for s in walk_statements(kernel.body) if isinstance(s, Transpose)]


@pytest.mark.parametrize(
    "columns, lanes, blocks",
    [
        ([*range(8)], 8, [(8, 8)]),
        ([7, 3, 5, 4, 6], 4, [(4, 4)]),
        ([*range(4)], 16, [(4, 4)] * 4),
        ([*range(13)], 8, [(8, 8), (4, 4), (4, 4)]),
        ([0, 1, 2, 9, 10], 8, []),
        ([*range(8)], 6, []),
    ],
)
def test_neighbouring_columns_are_transposed(columns: list[int], lanes: int, blocks: list[tuple[int, int]]) -> None:
    kernel = _columns(columns, lanes)
    after = transpose_gathers(kernel)
    verify(after)
    assert _blocks(after) == blocks
    data = {"A": np.random.default_rng(0).standard_normal((3 * lanes, 40)).astype(np.float32)}
    np.testing.assert_array_equal(interpret(after, data)["C"], data["A"].T[columns])


def test_masked_lanes_are_not_read() -> None:
    assert _blocks(transpose_gathers(_columns([*range(8)], 8, masked=True))) == []


def test_what_a_condition_guards_is_not_read() -> None:
    """A transposed convolution has phases without a place in the filters."""
    sizes = {"batch": 1, "channels": 72, "filters": 32, "height": 10, "width": 5, "kernel_h": 1, "kernel_w": 2}
    workload = OPERATORS["conv2d_transpose"].workload({**sizes, "stride": 2, "layout": "NHWC", "dtype": "int8"})
    assert assert_agrees(SKETCHES["cpu_gemm_dot"], workload, 3, target_named(VNNI)) == 3


@pytest.mark.parametrize("dtype, shape", [("float32", (37, 53)), ("bfloat16", (64, 40)), ("int8", (33, 65))])
def test_transposed_matrices_are_right_with_every_kind_of_tile(dtype: str, shape: tuple[int, int]) -> None:
    operator, target = OPERATORS["transpose"], host_target("llvm")
    workload = operator.workload({"shape": [*shape], "axes": [1, 0], "dtype": dtype})
    sketch = SKETCHES["cpu_loops"]
    space = sketch.space(workload, target)
    inputs = random_inputs(workload, 0)
    rows = [r for r in range(len(space)) if int(space.column("rows")[r]) in (4, 7, 16)]
    transposing = 0
    for row in rows[:: max(1, len(rows) // 8)]:
        schedule = space.schedule(row)
        transposing += bool(_blocks(run_passes(sketch.lower(workload, target, schedule))[-1][1]))
        module = load_module(workload, schedule)
        assert isinstance(module, Module)
        (result,) = module(*inputs.values())
        np.testing.assert_array_equal(result, next(iter(inputs.values())).T)
    assert transposing
