"""A GEMM of block-scaled operands on ``tcgen05``: TMA loads lines of operands, bulk copies their scales, and one thread
copies the scales to tensor memory and multiplies. A fault of ``FAULTS`` can be planted; "" is the right kernel."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.core.dtypes import INDEX, DType, float8_e4m3fn, float8_e5m2, float32, int32, uint8
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, Layout, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Compare, CompareOp, Expr, Load, index, logical_and
from tilewright.ir.gpu.bulk_copy import BulkCopy
from tilewright.ir.gpu.mbarrier import MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from tilewright.ir.gpu.tcgen05 import (
    BLOCK_SCALED_ATOMS,
    CHUNK_BYTES,
    BlockScaledAtom,
    BlockScaledMma,
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryCopy,
    TensorMemoryDeallocate,
    TensorMemoryLoad,
)
from tilewright.ir.gpu.tma import TmaLoad, tma_swizzle
from tilewright.ir.stmt import HardwareAxis, Kernel

M, N, LINES, STAGES = 128, 144, 3, 2
FIRST_OF_B = 16
"""The column of tensor memory in which the scales of B begin."""
ZERO = index(0)

FAULTS = {
    "scales not awaited": r"a_scales\[0, 0\] is read while an asynchronous copy to it is in flight",
    "scales not copied": r"scales\[0, 0\] is read before it is written",
    "scales in another place": r"scales\[0, 16\] is read before it is written",
    "copied by another thread": r"scales\[0, 0\] is accumulated in while|race on scales|is in flight",
}
"""Fault -> the message that it must cause."""


@dataclass(frozen=True)
class BlockScaledForm:
    """``name`` is the atom's. ``a`` and ``b`` are what operands lie as in memory."""

    name: str
    a: DType = uint8
    b: DType = uint8

    @property
    def atom(self) -> BlockScaledAtom:
        return BLOCK_SCALED_ATOMS[self.name]

    @property
    def groups(self) -> int:
        """How many times 4 scales along k a line has."""
        return self.atom.line // self.atom.block // 4


FORMS = {
    "mxfp8": BlockScaledForm("mxfp8", float8_e4m3fn, float8_e5m2),
    "mxfp4": BlockScaledForm("mxfp4"),
    "nvfp4": BlockScaledForm("nvfp4"),
}


def data(form: BlockScaledForm) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(inputs, their product)."""
    draw, inputs, sides = stream(7, "block scaled", form.name), dict[str, np.ndarray](), list[np.ndarray]()
    for name, rows, dtype in (("A", M, form.a), ("B", N, form.b)):
        atom, k = form.atom, LINES * form.atom.line
        if atom.bits == 8:
            values = draw.integers(-4, 5, (rows, k)).astype(np.float64)
            inputs[name] = values.astype(dtype.numpy)
        else:
            codes = draw.integers(0, 16, (rows, k)).astype(np.uint8)
            values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
            inputs[name] = codes[:, ::2] | codes[:, 1::2] << 4
        blocks = k // atom.block
        if atom.powers_of_two:
            scales = draw.integers(125, 130, (rows, blocks)).astype(np.uint8)
            factors = 2.0 ** (scales.astype(np.float64) - 127)
        else:
            factors = draw.choice([0.5, 0.75, 1.0, 1.5, 2.0], (rows, blocks))
            scales = factors.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        inputs[f"S{name}"] = _chunks(scales)
        sides.append(values * np.repeat(factors, atom.block, axis=1))
    return inputs, sides[0] @ sides[1].T


def _chunks(scales: np.ndarray) -> np.ndarray:
    """Scales (row, block) as chunks: (4 blocks, 128 rows, byte). The rows are filled up with zeros."""
    rows, blocks = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, blocks), dtype=np.uint8)
    padded[:rows] = scales
    parts = padded.reshape(-1, 4, 32, blocks // 4, 4)  # chunk of rows, quarter, row, 4 blocks, block
    return np.ascontiguousarray(parts.transpose(3, 0, 2, 1, 4).reshape(blocks // 4, len(parts), CHUNK_BYTES))


def block_scaled_gemm(form: BlockScaledForm, fault: str = "") -> Kernel:
    return _BlockScaledGemm(form, fault).kernel()


class _BlockScaledGemm:
    def __init__(self, form: BlockScaledForm, fault: str) -> None:
        self.form, self.fault, self.w = form, fault, Writer()
        width = LINES * form.atom.line * form.atom.bits // 8
        self.a, self.b = Buffer("A", (M, width), form.a), Buffer("B", (N, width), form.b)
        chunks = LINES * form.groups
        self.sa = Buffer("SA", (chunks, 1, CHUNK_BYTES), uint8)
        self.sb = Buffer("SB", (chunks, 2, CHUNK_BYTES), uint8)
        self.c = Buffer("C", (M, N), float32)

    def kernel(self) -> Kernel:
        w = self.w
        axes = [("g", 1, HardwareAxis.GRID_X), ("u", 5, HardwareAxis.WARP), ("l", 32, HardwareAxis.LANE)]
        with w.launch("f", axes) as (_, self.warp, self.lane):
            self._allocate()
            with w.loop("line", LINES) as line:
                self._step(line)
            with w.when(self.multiplies):
                w.emit(TensorMemoryCommit(self.done, ZERO))
            with w.when(self.warp < index(4)):
                w.emit(MbarrierWait(self.done, ZERO, ZERO))
                held = w.allocate("held", (N // 2,), float32, MemoryScope.REGISTER)
                for half in range(2):
                    w.emit(TensorMemoryLoad(held, (ZERO,), self.d, (index(16 * half), ZERO), N))
                    row = self.warp * 32 + 16 * half + self.lane // 4
                    with w.unrolled(f"e{half}", N // 2) as e:
                        column = e // 4 * 8 + self.lane % 4 * 2 + e % 2
                        w.store(self.c, (row + e // 2 % 2 * 8, column), Load(held, (e,)))
            w.emit(TensorMemoryDeallocate(self.scales))
            w.emit(TensorMemoryDeallocate(self.d))
        return Kernel("k", (self.a, self.b, self.sa, self.sb), (self.c,), (), w.finish())

    def _allocate(self) -> None:
        w, form = self.w, self.form
        self.a_stages, self.b_stages = self._stages("a", form.a, M), self._stages("b", form.b, N)
        sizes = {"a_scales": form.groups * CHUNK_BYTES, "b_scales": 2 * form.groups * CHUNK_BYTES}
        self.a_scales, self.b_scales = (
            w.allocate(name, (STAGES, size), uint8, MemoryScope.SHARED) for name, size in sizes.items()
        )
        self.full, self.empty, self.done = (
            w.allocate(name, (n,), INDEX, MemoryScope.SHARED)
            for name, n in (("full", STAGES), ("empty", STAGES), ("done", 1))
        )
        address = w.allocate("address", (1,), int32, MemoryScope.SHARED)
        self.d = w.allocate("d", (128, 256), float32, MemoryScope.TENSOR)
        self.scales = w.allocate("scales", (128, 64), int32, MemoryScope.TENSOR)
        self.loads, self.multiplies = self._is_first_of(4), self._is_first_of(0)
        with w.when(self.loads):
            with w.loop("i", STAGES) as i:
                w.emit(MbarrierInit(self.full, i, 3))  # what expects the bytes of TMA, and two bulk copies
                w.emit(MbarrierInit(self.empty, i, 1))
            w.emit(MbarrierInit(self.done, ZERO, 1))
        for buffer in (self.d, self.scales):
            w.emit(TensorMemoryAllocate(buffer, address))

    def _stages(self, name: str, dtype: DType, rows: int) -> Buffer:
        layout = Layout((rows * 128, 128, 1), tma_swizzle(dtype))
        return self.w.allocate(name, (STAGES, rows, 128), dtype, MemoryScope.SHARED, layout)

    def _is_first_of(self, warp: int) -> Expr:
        return logical_and(Compare(CompareOp.EQ, self.warp, index(warp)), Compare(CompareOp.EQ, self.lane, ZERO))

    def _step(self, line: Expr) -> None:
        w, form, fault = self.w, self.form, self.fault
        stage, parity = line % STAGES, line // STAGES % 2
        with w.when(self.loads):
            w.emit(MbarrierWait(self.empty, stage, index(1) - parity))
            w.emit(MbarrierArriveExpectTx(self.full, stage, 128 * (M + N)))
            for stages, source in ((self.a_stages, self.a), (self.b_stages, self.b)):
                box, at = (stages.shape[1], 128), (ZERO, line * 128)
                w.emit(TmaLoad(stages, (stage, ZERO, ZERO), source, at, box, self.full, stage, True))
            for held, source in ((self.a_scales, self.sa), (self.b_scales, self.sb)):
                first = (line * form.groups, ZERO, ZERO)
                w.emit(BulkCopy(held, (stage, ZERO), source, first, held.shape[1], self.full, stage))
        with w.when(self.multiplies):
            if fault != "scales not awaited":
                w.emit(MbarrierWait(self.full, stage, parity))
            if fault not in ("scales not copied", "copied by another thread"):
                self._copy(self.a_scales, stage, 0)
            if fault not in ("scales not copied", "scales in another place", "copied by another thread"):
                self._copy(self.b_scales, stage, FIRST_OF_B)
        if fault == "copied by another thread":
            with w.when(self._is_first_of(1)):
                w.emit(MbarrierWait(self.full, stage, parity))
                self._copy(self.a_scales, stage, 0)
                self._copy(self.b_scales, stage, FIRST_OF_B)
        with w.when(self.multiplies):
            if fault == "copied by another thread":
                w.emit(MbarrierWait(self.full, stage, parity))
            operands = (self.a_stages, (stage, ZERO, ZERO), self.b_stages, (stage, ZERO, ZERO))
            scales = (self.scales, (ZERO, ZERO), self.scales, (ZERO, index(FIRST_OF_B)))
            w.emit(BlockScaledMma(self.d, (ZERO, ZERO), *operands, *scales, form.name, N, form.atom.line, line > ZERO))
            w.emit(TensorMemoryCommit(self.empty, stage))

    def _copy(self, source: Buffer, stage: Expr, column: int) -> None:
        chunks = source.shape[1] // CHUNK_BYTES
        self.w.emit(TensorMemoryCopy(self.scales, (ZERO, index(column)), source, (stage, ZERO), chunks))
