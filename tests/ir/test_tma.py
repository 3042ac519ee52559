"""TMA loads and mbarriers: what they do, which faults are found, and how they are written and compiled."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tilewright.codegen.backend import TensorMap
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.dtypes import INDEX, bfloat16, float32
from tilewright.core.errors import CompileError, InvalidKernel, KernelFault
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, Layout, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Compare, CompareOp, Load, const, index, logical_and
from tilewright.ir.gpu.mbarrier import MbarrierArrive, MbarrierInit, MbarrierWait
from tilewright.ir.gpu.tma import TmaLoad, TmaPrefetch, tma_swizzle
from tilewright.ir.gpu.wgmma import SWIZZLE_128B, WarpgroupMma, WarpgroupMmaWait
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.ir.text import kernel_text
from tilewright.ir.verify import verify

ROWS, COLUMNS, DEPTH, STAGES = 100, 20, 328, 2
A, B = Buffer("A", (ROWS, DEPTH), bfloat16), Buffer("B", (1, COLUMNS, DEPTH), bfloat16)
C = Buffer("C", (128, 24), float32)
OUT = Buffer("O", (24, 32), bfloat16)
H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
ZERO = index(0)
STEPS = -(-DEPTH // 64)


def stages(rows: int) -> Layout:
    return Layout((rows * 64, 64, 1), SWIZZLE_128B)


def product(fault: str = "", *, box: tuple[int, ...] = (64, 64), layout: Layout | None = None) -> Kernel:
    """``A @ B.T`` with zeros out of bounds, 64 rows a block: one warp loads by TMA, a warpgroup multiplies."""
    w = Writer()
    axes = [("b", 2, HardwareAxis.GRID_X), ("u", 5, HardwareAxis.WARP), ("l", 32, HardwareAxis.LANE)]
    with w.launch("f", axes, evict_first=("A",)) as (b, u, lane):
        a = w.allocate("a", (STAGES, 64, 64), bfloat16, MemoryScope.SHARED, layout or stages(64))
        o = w.allocate("o", (STAGES, 24, 64), bfloat16, MemoryScope.SHARED, stages(24))
        full = w.allocate("full", (STAGES,), INDEX, MemoryScope.SHARED)
        free = w.allocate("free", (STAGES,), INDEX, MemoryScope.SHARED)
        first, copies = Compare(CompareOp.EQ, lane, ZERO), Compare(CompareOp.EQ, u, index(4))
        with w.when(logical_and(copies, first)), w.loop("i", STAGES) as i:
            w.emit(MbarrierInit(full, i, 2))
            w.emit(MbarrierInit(free, i, 4))
        w.barrier()
        d = w.allocate("d", (12,), float32, MemoryScope.REGISTER)
        with w.unrolled("e", 12) as e:
            w.store(d, (e,), const(0.0, float32))
        with w.loop("s", STEPS) as s:
            stage, parity = s % STAGES, s // STAGES % 2
            with w.when(logical_and(copies, first)):
                if fault != "room not awaited":
                    w.emit(MbarrierWait(free, stage, parity if fault == "wrong parity" else index(1) - parity))
                at = (stage, index(4 if fault == "misplaced" else 0), ZERO)
                begin = s * 64 + {"between pieces": index(5), "between pieces, somewhere": s % 3}.get(fault, ZERO)
                w.emit(TmaLoad(a, at, A, (b * 64, begin), box, full, stage))
                w.emit(TmaLoad(o, (stage, ZERO, ZERO), B, (ZERO, ZERO, s * 64), (1, 24, 64), full, stage))
            with w.when(u < index(4)):
                if fault != "data not awaited":
                    w.emit(MbarrierWait(full, stage, parity))
                if fault == "room given early":
                    with w.when(first):
                        w.emit(MbarrierArrive(free, stage))
                torn = u < index(2) if fault == "half a group" else None
                with w.when(torn):
                    w.emit(WarpgroupMma(d, (ZERO,), a, (stage, ZERO, ZERO), o, (stage, ZERO, ZERO), 24, 64))
                    w.emit(WarpgroupMmaWait(0))
                if fault not in ("room given early", "room never given"):
                    with w.when(first):
                        w.emit(MbarrierArrive(free, stage))
        with w.when(u < index(4)), w.unrolled("v", 12) as v:
            row, column = b * 64 + u * 16 + lane // 4 + v // 2 % 2 * 8, v // 4 * 8 + lane % 4 * 2 + v % 2
            w.store(C, (row, column), Load(d, (v,)))
    return Kernel("k", (A, B), (C,), (), w.finish())


def inputs() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    draw = stream(1, "boxes")
    return {t.name: draw.normal(size=t.shape).astype(ml_dtypes.bfloat16) for t in (A, B)}


def test_boxes_are_loaded_and_multiplied() -> None:
    kernel, given = product(), inputs()
    verify(kernel)
    result = interpret(finish(kernel, H200), given)["C"]
    wanted = np.zeros((128, 24), np.float32)
    wanted[:ROWS, :COLUMNS] = given["A"].astype(np.float32) @ given["B"][0].astype(np.float32).T
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)
    text = kernel_text(kernel)
    assert "tma_load(o[s%2, 0, 0], B[0, 0, s*64], (1, 24, 64), full[s%2])" in text
    assert "arrive(free[s%2])" in text


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("room not awaited", "gets more than its|race"),
        ("wrong parity", r"a wait that never ends: phase 0 of free\[0\] has 0 of 4 arrivals"),
        ("between pieces, somewhere", "a box of A begins at 65 in a row, no multiple of 16 bytes"),
        ("misplaced", "a box of 4096 elements for a from offset 256 on: not a multiple of 512"),
        ("data not awaited", "is read while an asynchronous copy to it is in flight"),
        ("room given early", r"race on a\[0, .*\]: written here, read by thread"),
        ("room never given", r"a wait that never ends: phase 0 of free\[0\] has 0 of 4 arrivals"),
    ],
)
def test_the_interpreter_finds(fault: str, what: str) -> None:
    with pytest.raises(KernelFault, match=what):
        interpret(product(fault), inputs())


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (product(box=(64, 32)), "takes rows of 64 bytes; only 128"),
        (product(box=(64, 64, 1)), "a box of 3 dimensions of A"),
        (product(box=(512, 64)), "256 a dimension at most"),
        (product(box=(64, 60)), "no multiples of 16 bytes"),
        (product("between pieces"), "a box of A begins between multiples of 16 bytes of a row"),
        (product(layout=Layout((64 * 64, 64, 1), replace(SWIZZLE_128B, bits=2))), "only 128 are allowed"),
        (product("half a group"), "a wgmma under `u < 2`, which differs within a warpgroup"),
    ],
    ids=["row", "dimensions", "extent", "bytes", "corner", "swizzle", "half"],
)
def test_the_verifier_refuses(kernel: Kernel, what: str) -> None:
    with pytest.raises(InvalidKernel, match=what):
        verify(kernel)


def test_the_swizzle_moves_chunks_of_16_bytes() -> None:
    assert tma_swizzle(bfloat16) == SWIZZLE_128B
    assert tma_swizzle(float32).offset(32 * 5) == 32 * 5 + 4 * 5  # row 5 begins in its sixth chunk


def test_they_become_tma_instructions() -> None:
    backend = backend_for(H200)
    source = backend.emit(finish(product(), H200), H200)
    (grid,) = source.launches
    assert grid.arguments == (2,)
    assert grid.tensor_maps == (TensorMap(0, (64, 64), True), TensorMap(1, (1, 24, 64), True, 256))
    assert "prefetch_tensormap(&A_map);" in source.text
    assert "const __grid_constant__ TensorMap A_map" in source.text and "tma_load_2d<true>(" in source.text
    binary = build_kernel(product(), H200)
    assert binary.launches == source.launches
    assert all(r.spill_bytes == 0 for r in binary.resources.values())
    text = backend.assembly(source, H200)
    assert text.count("UTMALDG.2D") == 1 and text.count("UTMALDG.3D") == 1
    with pytest.raises(CompileError, match="sm_89 has no such instruction"):
        build_kernel(product(), replace(H200, arch="sm_89"))


def asking(box: tuple[int, ...], begin: int = 0) -> Kernel:
    """The first lane prefetches a box from column ``begin`` on, which is not known before it runs, then loads one."""
    w = Writer()
    with w.launch("f", [("u", 1, HardwareAxis.WARP), ("l", 32, HardwareAxis.LANE)]) as (_, lane):
        a = w.allocate("a", (64, 64), bfloat16, MemoryScope.SHARED, Layout((64, 1), SWIZZLE_128B))
        full = w.allocate("full", (1,), INDEX, MemoryScope.SHARED)
        first = Compare(CompareOp.EQ, lane, ZERO)
        with w.when(first):
            w.emit(TmaPrefetch(A, (ZERO, index(begin) + lane), box))
            w.emit(MbarrierInit(full, ZERO, 1))
        w.barrier()
        with w.when(first):
            w.emit(TmaLoad(a, (ZERO, ZERO), A, (ZERO, ZERO), (64, 64), full, ZERO))
        w.emit(MbarrierWait(full, ZERO, ZERO))
        with w.unrolled("r", 24) as r:
            w.store(OUT, (r, lane), Load(a, (r, lane)))
    return Kernel("k", (A,), (OUT,), (), w.finish())


def test_boxes_are_prefetched_before_the_wait_for_earlier_launches() -> None:
    given = inputs()["A"]
    np.testing.assert_array_equal(interpret(asking((64, 64), 8), {"A": given})["O"], given[:24, :32])
    assert "tma_prefetch(A[0, 8 + l], (64, 64))" in kernel_text(asking((64, 64), 8))
    source = backend_for(H200).emit(finish(asking((64, 64), 8), H200), H200)
    text = source.text[source.text.index("griddepcontrol_launch_dependents();") :]
    assert text.index("tma_prefetch_2d(&A_map, ") < text.index("griddepcontrol_wait();")
    assert source.launches[0].tensor_maps == (TensorMap(0, (64, 64), True, 256),)
    assert "UTMAPF.L2.2D" in backend_for(H200).assembly(source, H200)


def test_a_prefetched_box_is_one_that_is_loaded() -> None:
    with pytest.raises(InvalidKernel, match="a box of 3 dimensions of A"):
        verify(asking((64, 64, 1)))
    with pytest.raises(KernelFault, match="a box of A begins at 4 in a row, no multiple of 16 bytes"):
        interpret(asking((64, 64), 4), {"A": inputs()["A"]})
    with pytest.raises(CompileError, match=r"a box \[32, 64\] of A is prefetched, which nothing copies"):
        build_kernel(asking((32, 64)), H200)
