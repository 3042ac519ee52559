"""``wgmma``: what it computes, which faults are found, and how it is written and compiled."""

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2, float32, int8, int32, tfloat32, uint8
from tilewright.core.errors import CompileError, InvalidKernel, KernelFault
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from tilewright.ir.build import Writer
from tilewright.ir.expr import Broadcast, Expr, Load, Ramp, const, index
from tilewright.ir.gpu.fence import AsyncProxyFence
from tilewright.ir.gpu.tma import tma_swizzle
from tilewright.ir.gpu.wgmma import SWIZZLE_128B, WarpgroupMma, WarpgroupMmaWait
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.ir.text import kernel_text
from tilewright.ir.verify import verify

A, B, C = Buffer("A", (128, 64), bfloat16), Buffer("B", (24, 64), bfloat16), Buffer("C", (128, 24), float32)
TILE = Layout((64, 1), SWIZZLE_128B)
H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
ZERO = index(0)


def product(
    *,
    barrier: bool = True,
    layout: Layout = TILE,
    columns: int = 24,
    first: int = 16,
    threads: int = 256,
    rows: int = 64,
    counted: Callable[[Expr], Expr] | None = None,
    counted_columns: int | Expr | None = None,
) -> Kernel:
    """``C += A @ B.T`` over the last 48 of 64 indices of k, with 1 in C before. Two warpgroups take 64 rows each, of
    which ``rows`` are there. ``counted``: how many of them count, by the number of the warpgroup; all that are there
    unless it is given."""
    w = Writer()
    with w.launch("f", [("t", threads, HardwareAxis.THREAD)]) as (t,):
        a = w.allocate("a", (128, 64), bfloat16, MemoryScope.SHARED, layout)
        b = w.allocate("b", (24, 64), bfloat16, MemoryScope.SHARED, layout)
        with w.loop("i", 1024 // threads) as i:
            row, column = (i * threads + t) // 8, (i * threads + t) % 8 * 8
            with w.when(row % 64 < index(rows) if rows < 64 else None):
                w.store(a, (row, Ramp(column, 1, 8)), Load(A, (row, Ramp(column, 1, 8))))
        with w.when(t < 192):
            row, column = t // 8, t % 8 * 8
            w.store(b, (row, Ramp(column, 1, 8)), Load(B, (row, Ramp(column, 1, 8))))
        w.emit(AsyncProxyFence())
        if barrier:
            w.barrier()
        d = w.allocate("d", (12,), float32, MemoryScope.REGISTER)
        w.store(d, (Ramp(ZERO, 1, 12),), Broadcast(const(1.0, float32), 12))
        w.emit(
            WarpgroupMma(
                *(d, (ZERO,), a, (t // 128 * 64, index(first)), b, (ZERO, index(first)), columns, 48),
                valid_rows=counted(t // 128) if counted else rows,
                valid_columns=counted_columns,
            )
        )
        w.emit(WarpgroupMmaWait(0))
        with w.unrolled("j", 3) as j, w.unrolled("h", 2) as h:
            row = t // 128 * 64 + t // 32 % 4 * 16 + h * 8 + t % 32 // 4
            w.store(C, (row, Ramp(j * 8 + t % 4 * 2, 1, 2)), Load(d, (Ramp(j * 4 + h * 2, 1, 2),)))
    return Kernel("k", (A, B), (C,), (), w.finish())


def register_product(*, transposed: bool = False, fault: str = "") -> Kernel:
    """``C = A @ B.T``, or ``C = A @ B`` of 64 rows of k, by two warpgroups that hold A in registers."""
    w = Writer()
    b_global = Buffer("B", (64, 64) if transposed else (24, 64), bfloat16)
    with w.launch("f", [("t", 256, HardwareAxis.THREAD)]) as (t,):
        b = w.allocate("b", b_global.shape, bfloat16, MemoryScope.SHARED, TILE)
        with w.loop("i", 2) as i:
            row, column = i * 32 + t // 8, t % 8 * 8
            with w.when(row < b_global.shape[0]):
                w.store(b, (row, Ramp(column, 1, 8)), Load(b_global, (row, Ramp(column, 1, 8))))
        w.emit(AsyncProxyFence())
        w.barrier()
        a = w.allocate("a", (32,), bfloat16, MemoryScope.REGISTER)
        row, column = t // 128 * 64 + t // 32 % 4 * 16 + t % 32 // 4, t % 4 * 2
        with w.unrolled("step", 4) as step, w.unrolled("pair", 4) as pair:
            at = (row + pair % 2 * 8, Ramp(step * 16 + pair // 2 * 8 + column, 1, 2))
            w.store(a, (Ramp(step * 8 + pair * 2, 1, 2),), Load(A, at))
        d = w.allocate("d", (12,), float32, MemoryScope.REGISTER)
        one = w.allocate("one", (1,), float32, MemoryScope.REGISTER)
        if fault != "unknown":
            w.store(one, (ZERO,), const(1.0, float32))
        place = 0 if fault != "misplaced" else 1
        mma = WarpgroupMma(d, (ZERO,), a, (index(place),), b, (ZERO, ZERO), 24, 64, False, False, transposed)
        w.emit(replace(mma, a_transposed=True) if fault == "transposed" else mma)
        if fault == "changed":
            w.store(a, (Ramp(ZERO, 1, 2),), Load(A, (row, Ramp(column, 1, 2))))
        after = Load(a, (ZERO,)) if fault == "half" else const(2.0, float32) * Load(one, (ZERO,))
        w.emit(WarpgroupMmaWait(0, after))
        with w.unrolled("j", 3) as j, w.unrolled("h", 2) as h:
            w.store(C, (row + h * 8, Ramp(j * 8 + column, 1, 2)), Load(d, (Ramp(j * 4 + h * 2, 1, 2),)))
    return Kernel("k", (A, b_global), (C,), (), w.finish())


@pytest.mark.parametrize("transposed", [False, True])
def test_it_multiplies_fragments_in_registers(transposed: bool) -> None:
    draw = stream(3, "group")
    kernel = register_product(transposed=transposed)
    a, b = (draw.normal(size=t.shape).astype(ml_dtypes.bfloat16) for t in kernel.inputs)
    verify(kernel)
    result = interpret(finish(kernel, H200), {"A": a, "B": b})["C"]
    second = b[:, :24].astype(np.float32) if transposed else b.astype(np.float32).T
    np.testing.assert_allclose(result, a.astype(np.float32) @ second, rtol=1e-5, atol=1e-5)
    assert "warpgroup_mma(d[0], a[0], b[0, 0], 24, 64" in kernel_text(kernel)
    assert "warpgroup_mma_wait(0, after 2.0 * one[0])" in kernel_text(kernel)
    binary = build_kernel(kernel, H200)
    assert all(r.spill_bytes == 0 for r in binary.resources.values())


def sliding_product(leading: int = 16, *, transposed: bool = True) -> Kernel:
    """``C = A @ (first 64 lines of B | 64 lines from ``leading`` on)``, by a warpgroup."""
    w, c = Writer(), Buffer("C", (64, 128), float32)
    a, b = (Buffer(name, (rows, 64), bfloat16) for name, rows in (("A", 64), ("B", 80)))
    with w.launch("f", [("t", 128, HardwareAxis.THREAD)]) as (t,):
        held = [w.allocate(x.name.lower(), x.shape, bfloat16, MemoryScope.SHARED, TILE) for x in (a, b)]
        for given, shared in zip((a, b), held, strict=True):
            with w.loop(f"i_{given.name}", given.shape[0] // 16) as i:
                at = (i * 16 + t // 8, Ramp(t % 8 * 8, 1, 8))
                w.store(shared, at, Load(given, at))
        w.emit(AsyncProxyFence())
        w.barrier()
        d, place = w.allocate("d", (64,), float32, MemoryScope.REGISTER), (ZERO, ZERO)
        shape = (128, 64, False, False, transposed)
        w.emit(WarpgroupMma(d, (ZERO,), held[0], place, held[1], place, *shape, b_leading_lines=leading))
        w.emit(WarpgroupMmaWait(0))
        with w.unrolled("j", 16) as j, w.unrolled("h", 2) as h:
            row = t // 32 * 16 + h * 8 + t % 32 // 4
            w.store(c, (row, Ramp(j * 8 + t % 4 * 2, 1, 2)), Load(d, (Ramp(j * 4 + h * 2, 1, 2),)))
    return Kernel("k", (a, b), (c,), (), w.finish())


def test_columns_may_share_lines() -> None:
    draw, kernel = stream(4, "group"), sliding_product()
    a, b = (draw.normal(size=t.shape).astype(ml_dtypes.bfloat16) for t in kernel.inputs)
    verify(kernel)
    result = interpret(finish(kernel, H200), {"A": a, "B": b})["C"]
    lines = b.astype(np.float32)
    wanted = a.astype(np.float32) @ np.concatenate([lines[:64], lines[16:]], axis=1)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    assert "wgmma_descriptor_mn_major<2048>" in backend_for(H200).emit(finish(kernel, H200), H200).text


def test_fragments_stay_as_they_are_until_the_product_is_done() -> None:
    kernel = register_product(fault="changed")
    with pytest.raises(KernelFault, match="a is accessed while a wgmma that reads it is in flight"):
        interpret(kernel, {t.name: np.zeros(t.shape, ml_dtypes.bfloat16) for t in kernel.inputs})


def test_what_is_computed_ahead_of_a_wait_is_known() -> None:
    kernel = register_product(fault="unknown")
    with pytest.raises(KernelFault, match=r"one\[0\] is read before it is written"):
        interpret(kernel, {t.name: np.zeros(t.shape, ml_dtypes.bfloat16) for t in kernel.inputs})


def test_it_multiplies_rows_of_shared_memory() -> None:
    draw = stream(1, "group")
    a, b = (draw.normal(size=t.shape).astype(ml_dtypes.bfloat16) for t in (A, B))
    kernel = product()
    verify(kernel)
    result = interpret(finish(kernel, H200), {"A": a, "B": b})["C"]
    wanted = 1 + a[:, 16:].astype(np.float32) @ b[:, 16:].astype(np.float32).T
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    assert "warpgroup_mma(d[0], a[t//128*64, 16], b[0, 16]" in kernel_text(kernel)


def test_rows_that_do_not_count_may_hold_anything() -> None:
    draw = stream(2, "group")
    given = {t.name: draw.normal(size=t.shape).astype(ml_dtypes.bfloat16) for t in (A, B)}
    whole, part = (interpret(finish(product(rows=rows), H200), given)["C"].reshape(2, 64, 24) for rows in (64, 40))
    np.testing.assert_allclose(part[:, :40], whole[:, :40], rtol=1e-4, atol=1e-4)
    assert np.isnan(part[:, 40:]).all()


def test_how_many_rows_and_columns_count_may_depend_on_the_warpgroup() -> None:
    draw = stream(2, "group")
    given = {t.name: draw.normal(size=t.shape).astype(ml_dtypes.bfloat16) for t in (A, B)}
    counted = product(rows=40, counted=lambda group: index(40) - group * 30, counted_columns=index(17))
    verify(counted)
    whole, part = (interpret(finish(k, H200), given)["C"].reshape(2, 64, 24) for k in (product(), counted))
    for group, rows in enumerate((40, 10)):
        np.testing.assert_allclose(part[group, :rows, :17], whole[group, :rows, :17], rtol=1e-4, atol=1e-4)
        assert np.isnan(part[group, rows:]).all() and np.isnan(part[group, :, 17:]).all()


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (product(barrier=False), "race"),
        (product(first=8), "not aligned"),
        (product(rows=40, counted=lambda group: group + 40), "read before it is written"),
    ],
    ids=["race", "place", "rows"],
)
def test_the_interpreter_finds(kernel: Kernel, what: str) -> None:
    inputs = {t.name: np.zeros(t.shape, ml_dtypes.bfloat16) for t in (A, B)}
    with pytest.raises(KernelFault, match=what):
        interpret(kernel, inputs)


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (product(columns=12), "n = 12; 8 to 256"),
        (product(layout=Layout((64, 1), Swizzle(3, 3, 4))), "does not lie as"),
        (product(threads=64), "blocks of 64 threads"),
        (product(rows=0), "0 rows count"),
        (product(counted_columns=25), "25 columns count"),
        (product(counted_columns=const(8.0, float32)), "how many columns of a wgmma count"),
        (sliding_product(12), "128 rows, 64 of them 12 lines apart, in b"),
        (sliding_product(24), "128 rows, 64 of them 24 lines apart, in b"),
        (sliding_product(transposed=False), "leading lines and is not transposed"),
        (register_product(fault="misplaced"), "32 elements of a do not fit"),
        (register_product(fault="transposed"), "a of a wgmma is in registers, and is transposed"),
        (register_product(fault="half"), "ahead of a wait for wgmmas is no float32 scalar"),
    ],
    ids=[
        "columns",
        "layout",
        "threads",
        "rows",
        "counted",
        "index",
        "amid",
        "beyond",
        "K-major",
        "fragments",
        "transposed",
        "after",
    ],
)
def test_the_verifier_refuses(kernel: Kernel, what: str) -> None:
    with pytest.raises(InvalidKernel, match=what):
        verify(kernel)


def _of_type(a: DType, b: DType, d: DType, columns: int = 32, k: int = 32, transposed: bool = False) -> Kernel:
    w = Writer()
    with w.launch("f", [("t", 128, HardwareAxis.THREAD)]):
        line = 128 // a.bytes
        layout = Layout((line, 1), tma_swizzle(a))
        left, right = (w.allocate(n, (64, line), t, MemoryScope.SHARED, layout) for n, t in (("a", a), ("b", b)))
        sums = w.allocate("d", (128,), d, MemoryScope.REGISTER)
        at = (ZERO, ZERO)
        w.emit(WarpgroupMma(sums, (ZERO,), left, at, right, at, columns, k, False, b_transposed=transposed))
        w.emit(WarpgroupMmaWait(0))
        w.store(C, (ZERO, ZERO), const(1.0, float32))
    return Kernel("k", (A,), (C,), (), w.finish())


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (_of_type(int8, int8, int32, 40), "n = 40; 8 to 256 in steps of 16, and 8, 24"),
        (_of_type(int8, int8, float32), "d of a wgmma is float32, not int32"),
        (_of_type(float8_e4m3fn, int8, float32), "a wgmma of float8_e4m3fn and int8, which have none"),
        (_of_type(float32, float32, float32, k=8), "a wgmma of float32 and float32, which have none"),
        (_of_type(tfloat32, tfloat32, float32, k=12), "k = 12; 8 to 32 in steps of 8"),
        (_of_type(float8_e5m2, float8_e4m3fn, float32, k=16), "k = 16; 32 to 128 in steps of 32"),
        (_of_type(tfloat32, tfloat32, float32, k=8, transposed=True), "transposed; only 16-bit floats may be"),
    ],
    ids=["columns", "accumulator", "mixed", "float32", "tf32", "float8", "transposed"],
)
def test_each_type_has_its_rules(kernel: Kernel, what: str) -> None:
    with pytest.raises(InvalidKernel, match=what):
        verify(kernel)


@pytest.mark.parametrize(
    "types", [(tfloat32, tfloat32, float32), (int8, uint8, int32), (float8_e4m3fn, float8_e5m2, float32)], ids=str
)
def test_each_type_is_allowed(types: tuple[DType, DType, DType]) -> None:
    verify(_of_type(*types))


def test_it_becomes_the_instruction_of_hopper_alone() -> None:
    binary = build_kernel(product(), H200)
    assert all(r.spill_bytes == 0 for r in binary.resources.values())
    backend = backend_for(H200)
    text = backend.assembly(backend.emit(finish(product(), H200), H200), H200)
    assert text.count("HGMMA.64x24x16.F32.BF16") == 3
    with pytest.raises(CompileError, match="sm_89 has no such instruction"):
        build_kernel(product(), replace(H200, arch="sm_89"))
