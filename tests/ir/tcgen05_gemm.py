"""A GEMM on ``tcgen05``: a producer warp fills two stages by TMA, one thread multiplies into tensor memory, and four
warps store what they load from there, tile after tile. A fault of ``FAULTS`` can be planted; "" is the right kernel.
"""

from dataclasses import dataclass

import numpy as np

from tilewright.core.dtypes import INDEX, DType, bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, int8, int32
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, Layout, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Compare, CompareOp, Expr, Load, index, logical_and
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.mbarrier import MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from tilewright.ir.gpu.tcgen05 import (
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryDeallocate,
    TensorMemoryLoad,
    TensorMemoryMma,
)
from tilewright.ir.gpu.tma import TmaLoad, tma_swizzle
from tilewright.ir.stmt import HardwareAxis, Kernel

TILES, STAGES, TILE_N, COLUMNS = 2, 2, 48, 64
K_TILES = 3
PRODUCER = 4
"""The number of the warp that loads. Those before it load and store results; the first thread of all multiplies."""
ZERO = index(0)

FAULTS = {
    "never allocated": "d is allocated by 0 statements, not by one",
    "never deallocated": "d is deallocated by 0 statements, not by one",
    "allocated late": "tensor memory d is accessed while it is not allocated",
    "deallocated early": "tensor memory d is accessed while it is not allocated",
    "deallocated amid products": "tensor memory d is deallocated while a tcgen05.mma in flight accumulates in it",
    "products not awaited": r"d\[0, 0\] is read while a tcgen05.mma that accumulates in it is in flight",
    "never committed": r"a wait that never ends: phase 0 of done\[0\] has 0 of 1 arrivals",
    "data not awaited": r"a\[0, 0, 0\] is read while an asynchronous copy to it is in flight",
    "stage given early": r"a\[0, .*\] is written while a wgmma, a tcgen05.mma or a TMA store in flight reads it",
    "stage not awaited": r"is written while|gets more than its|gets bytes after its end|race",
    "never cleared": r"d\[0, 0\] is read before it is written",
    "another thread": r"d\[0, 0\] is accumulated in while a tcgen05.mma of another thread does so",
    "loads not ordered": r"race on d\[.*\]: accumulated in here, read by thread",
}
"""Fault -> the message that it must cause."""


@dataclass(frozen=True)
class Tcgen05Form:
    """``m`` is how many rows a tile has. ``a_transposed`` and ``b_transposed`` say whether an operand is transposed."""

    m: int = 128
    a: DType = bfloat16
    b: DType = bfloat16
    a_transposed: bool = False
    b_transposed: bool = False

    @property
    def accumulator(self) -> DType:
        return int32 if self.a.is_integer else float32

    @property
    def line(self) -> int:
        return 128 // self.a.bytes


FORMS = {
    "K-major": Tcgen05Form(),
    "64 rows": Tcgen05Form(m=64),
    "both transposed": Tcgen05Form(a=float16, b=float16, a_transposed=True, b_transposed=True),
    "64 rows, a transposed": Tcgen05Form(m=64, a_transposed=True),
    "8-bit floats": Tcgen05Form(a=float8_e4m3fn, b=float8_e5m2),
    "integers": Tcgen05Form(a=int8, b=int8),
}


def tcgen05_gemm(form: Tcgen05Form, fault: str = "") -> Kernel:
    return _Tcgen05Gemm(form, fault).kernel()


def data(form: Tcgen05Form) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(small whole numbers, their product)."""
    draw, k = stream(5, "tcgen05"), K_TILES * form.line
    a, b = draw.integers(-4, 5, (form.m, k)), draw.integers(-4, 5, (TILES * TILE_N, k))
    inputs = {"A": a.T if form.a_transposed else a, "B": b.T if form.b_transposed else b}
    types = {"A": form.a.numpy, "B": form.b.numpy}
    return {name: np.ascontiguousarray(x).astype(types[name]) for name, x in inputs.items()}, a @ b.T


class _Tcgen05Gemm:
    def __init__(self, form: Tcgen05Form, fault: str) -> None:
        self.form, self.fault, self.w = form, fault, Writer()
        k = K_TILES * form.line
        self.a = Buffer("A", (k, form.m) if form.a_transposed else (form.m, k), form.a)
        self.b = Buffer("B", (k, TILES * TILE_N) if form.b_transposed else (TILES * TILE_N, k), form.b)
        self.c = Buffer("C", (form.m, TILES * TILE_N), form.accumulator)

    def kernel(self) -> Kernel:
        w, fault = self.w, self.fault
        axes = [("g", 1, HardwareAxis.GRID_X), ("u", 5, HardwareAxis.WARP), ("l", 32, HardwareAxis.LANE)]
        with w.launch("f", axes) as (_, self.warp, self.lane):
            self._shared()
            if fault not in ("never allocated", "allocated late"):
                w.emit(TensorMemoryAllocate(self.d, self.address))
            w.barrier()
            with w.loop("tile", TILES) as tile:
                with w.loop("step", K_TILES) as step:
                    self._step(tile, step)
                if fault == "allocated late":
                    w.emit(TensorMemoryAllocate(self.d, self.address))
                self._finish(tile)
            if fault not in ("never deallocated", "deallocated early", "deallocated amid products"):
                w.emit(TensorMemoryDeallocate(self.d))
        return Kernel("k", (self.a, self.b), (self.c,), (), w.finish())

    def _shared(self) -> None:
        w, form = self.w, self.form
        self.a_stages = self._stages("a", form.a, form.m, form.a_transposed)
        self.b_stages = self._stages("b", form.b, TILE_N, form.b_transposed)
        self.full = w.allocate("full", (STAGES,), INDEX, MemoryScope.SHARED)
        self.empty = w.allocate("empty", (STAGES,), INDEX, MemoryScope.SHARED)
        self.done = w.allocate("done", (1,), INDEX, MemoryScope.SHARED)
        self.address = w.allocate("address", (1,), int32, MemoryScope.SHARED)
        self.d = w.allocate("d", (128, COLUMNS), form.accumulator, MemoryScope.TENSOR)
        self.loads, self.multiplies = self._is_first_of(PRODUCER), self._is_first_of(0)
        with w.when(self.loads):
            with w.loop("i", STAGES) as i:
                w.emit(MbarrierInit(self.full, i, 1))
                w.emit(MbarrierInit(self.empty, i, 1))
            w.emit(MbarrierInit(self.done, ZERO, 1))

    def _stages(self, name: str, dtype: DType, rows: int, transposed: bool) -> Buffer:
        line = 128 // dtype.bytes
        shape: tuple[int, ...] = (STAGES, -(-rows // line), line, line) if transposed else (STAGES, rows, line)
        strides = (-(-rows // line) * line * line, line * line, line, 1) if transposed else (rows * line, line, 1)
        return self.w.allocate(name, shape, dtype, MemoryScope.SHARED, Layout(strides, tma_swizzle(dtype)))

    def _is_first_of(self, warp: int) -> Expr:
        both = (Compare(CompareOp.EQ, self.warp, index(warp)), Compare(CompareOp.EQ, self.lane, ZERO))
        return logical_and(*both)

    def _step(self, tile: Expr, step: Expr) -> None:
        w, form, fault = self.w, self.form, self.fault
        fill = tile * K_TILES + step
        stage, parity = fill % STAGES, fill // STAGES % 2
        with w.when(self.loads):
            if fault != "stage not awaited":
                w.emit(MbarrierWait(self.empty, stage, index(1) - parity))
            size = self.a_stages.bytes // STAGES + self.b_stages.bytes // STAGES
            w.emit(MbarrierArriveExpectTx(self.full, stage, size))
            self._load(self.a_stages, self.a, ZERO, step, stage, form.a_transposed)
            self._load(self.b_stages, self.b, tile * TILE_N, step, stage, form.b_transposed)
        with w.when(self.multiplies):
            if fault != "data not awaited":
                w.emit(MbarrierWait(self.full, stage, parity))
            if fault == "stage given early":
                w.emit(TensorMemoryCommit(self.empty, stage))
            self._multiply(stage, True if fault == "never cleared" else step > ZERO)
            if fault != "stage given early":
                w.emit(TensorMemoryCommit(self.empty, stage))
        if fault == "another thread":
            with w.when(self._is_first_of(1)):
                w.emit(MbarrierWait(self.full, stage, parity))
                self._multiply(stage, step > ZERO)

    def _multiply(self, stage: Expr, accumulates: Expr | bool) -> None:
        form = self.form
        a, b = ((stage, *[ZERO] * (len(x.shape) - 1)) for x in (self.a_stages, self.b_stages))
        sizes = (form.m, TILE_N, form.line)
        flags = (accumulates, form.a_transposed, form.b_transposed)
        self.w.emit(TensorMemoryMma(self.d, (ZERO, ZERO), self.a_stages, a, self.b_stages, b, *sizes, *flags))

    def _load(self, stages: Buffer, source: Buffer, row: Expr, step: Expr, stage: Expr, transposed: bool) -> None:
        w, line = self.w, stages.shape[-1]
        if not transposed:
            box, at = (stages.shape[1], line), (row, step * line)
            w.emit(TmaLoad(stages, (stage, ZERO, ZERO), source, at, box, self.full, stage, True))
            return
        for n in range(stages.shape[1]):
            to, at = (stage, index(n), ZERO, ZERO), (step * line, row + n * line)
            w.emit(TmaLoad(stages, to, source, at, (line, line), self.full, stage, True))

    def _finish(self, tile: Expr) -> None:
        w, fault, form = self.w, self.fault, self.form
        if fault != "never committed":
            with w.when(self.multiplies):
                w.emit(TensorMemoryCommit(self.done, ZERO))
        if fault == "deallocated amid products":
            w.emit(TensorMemoryDeallocate(self.d))
        stores = self.warp < index(PRODUCER)
        with w.when(stores):
            if fault != "products not awaited":
                w.emit(MbarrierWait(self.done, ZERO, tile % 2))
        if fault == "deallocated early":
            w.emit(TensorMemoryDeallocate(self.d))
        with w.when(stores):
            held = w.allocate("held", (TILE_N // 2,), form.accumulator, MemoryScope.REGISTER)
            for half in range(form.m // 64):
                w.emit(TensorMemoryLoad(held, (ZERO,), self.d, (index(16 * half), ZERO), TILE_N))
                row = self.warp * (16 * (form.m // 64)) + 16 * half + self.lane // 4
                with w.unrolled(f"e{half}", TILE_N // 2) as e:
                    column = tile * TILE_N + e // 4 * 8 + self.lane % 4 * 2 + e % 2
                    w.store(self.c, (row + e // 2 % 2 * 8, column), Load(held, (e,)))
            if fault != "loads not ordered":
                w.barrier(SyncScope.WARPGROUP)
