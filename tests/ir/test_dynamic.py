"""Kernels with a dynamic extent: what a call of one extent is, and what the interpreter finds in it."""

import numpy as np
import pytest

from tilewright.core.dtypes import float32
from tilewright.core.errors import InvalidParameter, KernelFault
from tilewright.ir.buffer import Buffer
from tilewright.ir.build import Writer
from tilewright.ir.dynamic import kernel_at_extent
from tilewright.ir.expr import Load, Var, const, index
from tilewright.ir.interpret import interpret
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.stmt import DynamicExtent, HardwareAxis, Kernel
from tilewright.ir.text import kernel_text
from tilewright.ir.verify import verify

MOST, COLUMNS, ROWS = 40, 3, 8
X, Y = Buffer("X", (MOST, COLUMNS), float32), Buffer("Y", (MOST, COLUMNS), float32)
M = Var("m")
ROW_PLACES = frozenset({("X", 0), ("Y", 0)})


def doubled(*, guarded: bool = True, count: bool = True) -> Kernel:
    """A block of eight threads takes eight rows, one each."""
    w = Writer()
    axes = (("block", MOST // ROWS, HardwareAxis.GRID_X), ("t", ROWS, HardwareAxis.THREAD))
    with w.launch("double", axes, count=(M + (ROWS - 1)) // ROWS if count else None) as (block, t):
        row = block * ROWS + t
        with w.when(row < M if guarded else None), w.loop("j", COLUMNS) as j:
            w.store(Y, (row, j), Load(X, (row, j)) * const(2.0, float32))
    return Kernel("k", (X,), (Y,), (), w.finish(), dynamic=(DynamicExtent("m", MOST, ROW_PLACES),))


@pytest.mark.parametrize("extent", [1, 7, 8, 9, 39, 40])
@pytest.mark.parametrize("count", [True, False])
def test_a_call_computes_its_rows(extent: int, count: bool) -> None:
    x = np.arange(extent * COLUMNS, dtype=np.float32).reshape(extent, COLUMNS)
    for kernel in (doubled(count=count), simplify_kernel(doubled(count=count))):
        verify(kernel, final=True)
        np.testing.assert_array_equal(interpret(kernel, {"X": x})["Y"], 2 * x)


def test_rows_beyond_the_extent_are_out_of_bounds() -> None:
    verify(doubled(guarded=False))
    with pytest.raises(KernelFault):
        interpret(doubled(guarded=False), {"X": np.zeros((9, COLUMNS), np.float32)})
    interpret(doubled(guarded=False), {"X": np.zeros((16, COLUMNS), np.float32)})


def test_an_extent_gives_a_static_kernel() -> None:
    static = kernel_at_extent(doubled(), 9)
    assert not static.dynamic and [b.shape for b in static.parameters] == [(9, COLUMNS)] * 2
    assert static.launches[0].blocks == (2, 1, 1)
    assert kernel_at_extent(static, 9) is static
    with pytest.raises(InvalidParameter, match="allowed: 1 to 40"):
        kernel_at_extent(doubled(), 41)


def test_views_have_as_many_multiples_of_the_extent() -> None:
    extent = DynamicExtent("m", MOST, frozenset({("X", 0)}))
    assert extent.shape_at("X", (4 * MOST, 7), 10) == (40, 7)
    assert extent.shape_at("Z", (4 * MOST, 7), 10) == (4 * MOST, 7)


def test_the_simplifier_knows_the_bounds_of_the_extent() -> None:
    w = Writer()
    with w.launch("f", (("t", ROWS, HardwareAxis.THREAD),)) as (t,), w.when(M < index(MOST + 1)):
        w.store(Y, (index(0), index(0)), Load(X, (index(0), index(0))))
        w.store(Y, (t, index(1)), const(1.0, float32))
    kernel = Kernel("k", (X,), (Y,), (), w.finish(), dynamic=(DynamicExtent("m", MOST, ROW_PLACES),))
    assert "if" not in kernel_text(simplify_kernel(kernel))


def test_the_text_says_what_is_dynamic() -> None:
    text = kernel_text(doubled())
    assert "dynamic m in 1..40 of X, Y" in text and "grid_x block in 5 count (m + 7)//8" in text
