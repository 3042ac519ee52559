"""Operations of processors: what they compute, and what the verifier and the interpreter refuse."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.dtypes import bfloat16, float32, int8, int32
from tilewright.core.errors import InvalidKernel, KernelFault
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.cpu import Dot, PrefetchLine, TileLoad, TileMma, TileStore, TileZero, Transpose
from tilewright.ir.expr import Broadcast, Load, Ramp, const, index
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Kernel, Operation, Store
from tilewright.ir.text import kernel_text
from tilewright.ir.verify import verify

ZERO = index(0)
SOURCE = Buffer("source", (4, 8), float32)
COLUMNS = Buffer("columns", (8, 4), float32)


def _kernel(inputs: tuple[Buffer, ...], output: Buffer, *body: Operation | Store) -> Kernel:
    w = Writer()
    w.store(output, tuple(ZERO for _ in output.shape), const(0, output.dtype))
    for statement in body:
        w.emit(statement)
    return Kernel("k", inputs, (output,), (), w.finish())


def _turn() -> Transpose:
    return Transpose(COLUMNS, (ZERO, ZERO), 4, SOURCE, (ZERO, ZERO), 8, 4, 8)


def test_blocks_are_transposed() -> None:
    data = np.arange(32, dtype=np.float32).reshape(4, 8)
    kernel = _kernel((SOURCE,), COLUMNS, _turn())
    np.testing.assert_array_equal(interpret(kernel, {"source": data})["columns"], data.T)
    assert "transpose(columns[0, 0], 4, source[0, 0], 8, 4, 8, 1)" in kernel_text(kernel)


def test_units_stay_whole() -> None:
    target = Buffer("target", (4, 8), float32)
    turn = Transpose(target, (ZERO, ZERO), 8, SOURCE, (ZERO, ZERO), 8, 4, 4, 2)
    data = np.arange(32, dtype=np.float32).reshape(4, 8)
    got = interpret(_kernel((SOURCE,), target, turn), {"source": data})["target"]
    np.testing.assert_array_equal(got.reshape(4, 4, 2), data.reshape(4, 4, 2).swapaxes(0, 1))


@pytest.mark.parametrize(
    "broken",
    [
        replace(_turn(), rows=3),
        replace(_turn(), target_pitch=5),
        replace(_turn(), source_pitch=4),
        replace(_turn(), unit=4),
        replace(_turn(), target=Buffer("columns", (8, 4), int32)),
    ],
)
def test_blocks_that_cannot_be_transposed_are_refused(broken: Transpose) -> None:
    with pytest.raises(InvalidKernel):
        verify(_kernel((SOURCE,), broken.target, broken))


def test_blocks_beyond_their_buffer_are_found() -> None:
    beyond = replace(_turn(), source_indices=(index(1), ZERO))
    with pytest.raises(KernelFault, match="out of bounds"):
        interpret(_kernel((SOURCE,), COLUMNS, beyond), {"source": np.zeros((4, 8), np.float32)})


def _dot_kernel(atom: str = "bf16", lanes: int = 4) -> Kernel:
    a, b, d = Buffer("a", (2,), bfloat16), Buffer("b", (8,), bfloat16), Buffer("d", (4,), float32)
    start = Store(d, (Ramp(ZERO, 1, 4),), Broadcast(const(1.0, float32), 4))
    return _kernel((a, b), d, start, Dot(atom, d, (ZERO,), a, (ZERO,), b, (ZERO,), lanes))


def test_dot_products_of_contiguous_elements() -> None:
    a, b = (np.array(x, ml_dtypes.bfloat16) for x in ([2, 3], [1, 2, 3, 4, 5, 6, 7, 8]))
    got = interpret(_dot_kernel(), {"a": a, "b": b})["d"]
    np.testing.assert_array_equal(got, [1 + 2 + 6, 1 + 6 + 12, 1 + 10 + 18, 1 + 14 + 24])
    for wrong in ("s8s8", "u8s8", "nothing"):
        with pytest.raises(InvalidKernel):
            verify(_dot_kernel(wrong))
    with pytest.raises(InvalidKernel):
        verify(_dot_kernel(lanes=8))


def _tile_kernel(*, zero: bool = True, load_row: int = 0) -> Kernel:
    """c = a @ b for a [16, 64] and b [64, 16], as tiles of bytes."""
    a, b, c = Buffer("a", (16, 64), int8), Buffer("b", (16, 64), int8), Buffer("c", (16, 16), int32)
    w = Writer()
    w.store(c, (ZERO, ZERO), const(0, int32))
    left = w.allocate("left", (16, 64), int8, MemoryScope.REGISTER)
    right = w.allocate("right", (1, 16, 64), int8, MemoryScope.REGISTER)
    sums = w.allocate("sums", (2, 16, 16), int32, MemoryScope.REGISTER)
    if zero:
        w.emit(TileZero(sums, (index(1),)))
    w.emit(TileLoad(left, (), a, (index(load_row), ZERO)))
    w.emit(TileLoad(right, (ZERO,), b, (ZERO, ZERO)))
    w.emit(TileMma("s8s8", sums, (index(1),), left, (), right, (ZERO,)))
    w.emit(TileStore(c, (ZERO, ZERO), sums, (index(1),)))
    return Kernel("k", (a, b), (c,), (), w.finish())


def test_tiles_are_multiplied() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((16, 64), (64, 16)))
    grouped = b.reshape(16, 4, 16).swapaxes(1, 2).reshape(16, 64)
    got = interpret(_tile_kernel(), {"a": a, "b": grouped})["c"]
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


def test_what_tiles_lack_is_found() -> None:
    inputs = {"a": np.zeros((16, 64), np.int8), "b": np.zeros((16, 64), np.int8)}
    with pytest.raises(KernelFault, match="read before it is written"):
        interpret(_tile_kernel(zero=False), inputs)
    with pytest.raises(KernelFault, match="out of bounds"):
        interpret(_tile_kernel(load_row=1), inputs)


def test_tiles_are_16_rows_of_64_bytes_of_the_right_types() -> None:
    kernel = _tile_kernel()
    verify(kernel, final=True)
    w = Writer()
    tile = w.allocate("tile", (16, 32), int8, MemoryScope.REGISTER)
    w.emit(TileZero(tile, ()))
    w.store(kernel.outputs[0], (ZERO, ZERO), const(0, int32))
    with pytest.raises(InvalidKernel, match="16 rows of 64 bytes"):
        verify(replace(kernel, body=w.finish()))
    w = Writer()
    tile = w.allocate("tile", (16, 64), int8, MemoryScope.REGISTER)
    w.emit(TileMma("s8s8", tile, (), tile, (), tile, ()))
    w.store(kernel.outputs[0], (ZERO, ZERO), Load(kernel.outputs[0], (ZERO, ZERO)))
    with pytest.raises(InvalidKernel, match="is int8, not int32"):
        verify(replace(kernel, body=w.finish()))


def test_a_prefetch_reads_and_writes_nothing_but_must_be_in_bounds() -> None:
    data = {"source": np.arange(32, dtype=np.float32).reshape(4, 8)}
    kernel = _kernel((SOURCE,), COLUMNS, _turn(), PrefetchLine(SOURCE, (index(3), index(7))))
    verify(kernel, final=True)  # an input is not written by it
    assert "prefetch_line(source[3, 7])" in kernel_text(kernel)
    np.testing.assert_array_equal(interpret(kernel, data)["columns"], data["source"].T)
    with pytest.raises(KernelFault, match="out of bounds"):
        interpret(_kernel((SOURCE,), COLUMNS, _turn(), PrefetchLine(SOURCE, (index(4), ZERO))), data)
    with pytest.raises(InvalidKernel, match="several elements"):
        verify(_kernel((SOURCE,), COLUMNS, PrefetchLine(SOURCE, (Broadcast(ZERO, 2), Ramp(ZERO, 1, 2)))))
