"""Fragments of TF32 in registers: those of mma.sync, which wgmma takes as well, and float64 for mma.sync, too."""

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.dtypes import float32, tfloat32
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, Layout, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Cast, Expr, Load, Ramp, const, index
from tilewright.ir.gpu.fence import AsyncProxyFence
from tilewright.ir.gpu.mma import MMA_ATOMS, Mma
from tilewright.ir.gpu.tma import tma_swizzle
from tilewright.ir.gpu.wgmma import WarpgroupMma, WarpgroupMmaWait
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.ir.verify import verify

ZERO = index(0)


@pytest.mark.parametrize("name", ["m16n8k8_tf32", "m16n8k8_f64"])
def test_elements_lie_as_the_instruction_set_says(name: str) -> None:
    """Figures of PTX ISA, "Matrix Fragments for mma.m16n8k8", for TF32 and float64: lane 13 is number 1 of its group,
    3."""
    atom = MMA_ATOMS[name]
    assert [atom.fragment("a", 13, e) for e in range(4)] == [(3, 1), (11, 1), (3, 5), (11, 5)]
    assert [atom.fragment("b", 13, e) for e in range(2)] == [(1, 3), (5, 3)]
    assert [atom.fragment("d", 13, e) for e in range(4)] == [(3, 2), (3, 3), (11, 2), (11, 3)]


def _of_a_warp() -> Kernel:
    """C = A B by one mma.sync."""
    a, b, c = Buffer("A", (16, 8), float32), Buffer("B", (8, 8), float32), Buffer("C", (16, 8), float32)
    w = Writer()
    with w.launch("f", [("t", 32, HardwareAxis.THREAD)]) as (t,):
        held_a, held_b = (w.allocate(n, (e,), tfloat32, MemoryScope.REGISTER) for n, e in (("a", 4), ("b", 2)))
        d = w.allocate("d", (4,), float32, MemoryScope.REGISTER)
        for e in range(4):
            w.store(d, (index(e),), const(0.0, float32))
            w.store(held_a, (index(e),), Cast(Load(a, (t // 4 + e % 2 * 8, t % 4 + e // 2 * 4)), tfloat32))
        for e in range(2):
            w.store(held_b, (index(e),), Cast(Load(b, (t % 4 + e * 4, t // 4)), tfloat32))
        w.emit(Mma("m16n8k8_tf32", d, (ZERO,), held_a, (ZERO,), held_b, (ZERO,)))
        for e in range(4):
            w.store(c, (t // 4 + e // 2 * 8, t % 4 * 2 + e % 2), Load(d, (index(e),)))
    return Kernel("k", (a, b), (c,), (), w.finish())


def _of_a_warpgroup() -> Kernel:
    """C = A B^T by one wgmma that takes A from registers."""
    a, b, c = Buffer("A", (64, 32), float32), Buffer("B", (24, 32), float32), Buffer("C", (64, 24), float32)
    w = Writer()
    with w.launch("f", [("t", 128, HardwareAxis.THREAD)]) as (t,):
        layout = Layout((32, 1), tma_swizzle(tfloat32))
        shared = w.allocate("b", b.shape, tfloat32, MemoryScope.SHARED, layout)
        with w.loop("i", 6) as i:
            row, column = i * 4 + t // 32, t % 32
            w.store(shared, (row, column), Cast(Load(b, (row, column)), tfloat32))
        w.emit(AsyncProxyFence())
        w.barrier()
        held = w.allocate("a", (16,), tfloat32, MemoryScope.REGISTER)
        row = t // 32 * 16 + t % 32 // 4
        with w.unrolled("step", 4) as step, w.unrolled("register", 4) as register:
            at: tuple[Expr, ...] = (row + register % 2 * 8, step * 8 + register // 2 * 4 + t % 4)
            w.store(held, (step * 4 + register,), Cast(Load(a, at), tfloat32))
        d = w.allocate("d", (12,), float32, MemoryScope.REGISTER)
        w.emit(WarpgroupMma(d, (ZERO,), held, (ZERO,), shared, (ZERO, ZERO), 24, 32, False))
        w.emit(WarpgroupMmaWait(0))
        with w.unrolled("j", 3) as j, w.unrolled("h", 2) as h:
            w.store(c, (row + h * 8, Ramp(j * 8 + t % 4 * 2, 1, 2)), Load(d, (Ramp(j * 4 + h * 2, 1, 2),)))
    return Kernel("k", (a, b), (c,), (), w.finish())


@pytest.mark.parametrize("kernel", [_of_a_warp(), _of_a_warpgroup()], ids=["mma.sync", "wgmma"])
def test_they_are_multiplied(kernel: Kernel) -> None:
    """Small whole numbers have no rounding."""
    verify(kernel)
    draw = stream(5, "tf32")
    inputs = {t.name: draw.integers(-8, 8, t.shape).astype(np.float32) for t in kernel.inputs}
    a, b = inputs["A"], inputs["B"]
    rounded = finish(kernel, H200)
    wanted = a @ (b if a.shape[1] == b.shape[0] else b.T)
    np.testing.assert_array_equal(interpret(rounded, inputs)["C"], wanted)
    assert all(r.spill_bytes == 0 for r in build_kernel(rounded, H200).resources.values())
