"""Tile registers, dot products and turned blocks as machine instructions."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.schedule.gpu.tiles import workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.llvm.instructions import count_instructions
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.dtypes import DTYPES
from tilewright.core.errors import CompileError
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.build import Writer
from tilewright.ir.cpu import DOT_ATOMS, Transpose
from tilewright.ir.expr import const, index
from tilewright.ir.stmt import Kernel
from tilewright.runtime.cpu import CpuDevice
from tilewright.schedule.cpu.gemm.dot_kernel import lower_amx, lower_dot
from tilewright.schedule.cpu.gemm.kernel import CpuGemmSetting
from tilewright.schedule.cpu.shared_knobs import COLUMNS_INSIDE
from tilewright.schedule.problems.gemm import Gemm, gemm_of

WIDE = ("avx512bf16", "avx512bw", "avx512f", "avx512vl", "avx512vnni")
TILES = Target("llvm", "x86-64", (*WIDE, "amx-tile", "amx-bf16", "amx-int8"), threads=2, vector_bytes=64)
SETTING = CpuGemmSetting(mr=32, vectors=2, lanes=16, tiles=8, panels=8, kc=512, pack_a="task", pack_b="task")


def _product(dtype: str) -> Gemm:
    found = gemm_of(workload_of("matmul", m=512, n=512, k=1024, dtype=dtype))
    assert found is not None
    return found


def _assembly(kernel: Kernel, target: Target) -> str:
    backend = backend_for(target)
    return backend.assembly(backend.emit(finish(kernel, target), target), target)


@pytest.mark.parametrize(("dtype", "atom", "word"), [("bfloat16", "bf16", "tdpbf16ps"), ("int8", "s8s8", "tdpbssd")])
@pytest.mark.parametrize("threads", [1, 2])
def test_tiles_keep_to_their_registers(dtype: str, atom: str, word: str, threads: int) -> None:
    text = _assembly(lower_amx(_product(dtype), "k", SETTING, DOT_ATOMS[atom]), replace(TILES, threads=threads))
    products = re.findall(rf"{word}\s+%tmm(\d), %tmm(\d), %tmm(\d)", text)
    assert {d for _, _, d in products} == {"0", "1", "2", "3"} and {a for _, a, _ in products} == {"4", "5"}
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
    assert text.count("syscall") >= 1  # the state of tiles is asked for
    assert count_instructions(text)["matrix"] > 8


def test_tiles_are_set_up_as_the_manual_says() -> None:
    """Palette 1; from byte 16 on the bytes in a row of each tile, 16 bits each; from byte 48 on the rows."""
    kernel = finish(lower_amx(_product("int8"), "k", SETTING, DOT_ATOMS["s8s8"]), TILES)
    (line,) = re.findall(r"constant \[64 x i8\] \[(.*)\]", backend_for(TILES).emit(kernel, TILES).text)
    data = bytes(int(n) for n in re.findall(r"i8 (\d+)", line))
    assert len(data) == 64 and data[0] == 1 and not any(data[1:16])
    assert np.frombuffer(data[16:48], "<u2").tolist() == [64] * 8 + [0] * 8
    assert list(data[48:]) == [16] * 8 + [0] * 8


def test_no_tiles_without_the_extension_and_not_more_than_there_are() -> None:
    without = replace(TILES, features=WIDE)
    kernel = lower_amx(_product("bfloat16"), "k", SETTING, DOT_ATOMS["bf16"])
    with pytest.raises(CompileError, match="amx-bf16"):
        build_kernel(kernel, without)
    large = lower_amx(_product("bfloat16"), "k", replace(SETTING, mr=48), DOT_ATOMS["bf16"])
    with pytest.raises(CompileError, match="more than"):
        build_kernel(large, TILES)


@pytest.mark.parametrize("non_temporal", [False, True])
def test_rows_are_prefetched_and_outputs_stored_past_the_caches(non_temporal: bool) -> None:
    """Two lines of the next row of tiles in each step of the one before, and outputs in whole lines past the caches."""
    setting = replace(SETTING, panels=16, pack_a="never", order=COLUMNS_INSIDE, non_temporal=non_temporal)
    text = _assembly(lower_amx(_product("bfloat16"), "k", setting, DOT_ATOMS["bf16"]), TILES)
    assert text.count("prefetcht1") == 2
    assert bool(re.search(r"vmovnt\w+\s+%zmm", text)) == non_temporal
    packed = _assembly(lower_amx(_product("bfloat16"), "k", SETTING, DOT_ATOMS["bf16"]), TILES)
    assert "prefetcht1" not in packed


def test_dot_products_are_single_instructions() -> None:
    setting = replace(SETTING, mr=6, vectors=4)
    kernel = lower_dot(_product("bfloat16"), "k", setting, DOT_ATOMS["bf16"])
    assert _assembly(kernel, TILES).count("vdpbf16ps") == 24
    with pytest.raises(CompileError, match="avx512bf16"):
        build_kernel(kernel, replace(TILES, features=("avx512f",)))


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "unit"),
    [("float32", 16, 16, 1), ("float64", 8, 8, 1), ("bfloat16", 16, 16, 2), ("int8", 4, 16, 1), ("int8", 16, 16, 4),
     ("bfloat16", 2, 16, 1), ("int32", 8, 2, 1), ("float32", 4, 4, 2)],
)  # fmt: skip
def test_turned_blocks_are_what_they_say(dtype: str, rows: int, columns: int, unit: int) -> None:
    """Bit by bit, with nothing written between the rows of the target."""
    kind, gap = DTYPES[dtype], 3 if rows == columns else 0
    source = Buffer("source", (rows, columns * unit + 1), kind)
    target = Buffer("target", (columns, rows * unit + gap), kind)
    w, zeros = Writer(), (index(0), index(0))
    with w.loop("i", columns) as i, w.loop("j", rows * unit + gap) as j:
        w.store(target, (i, j), const(0, kind))
    w.emit(Transpose(target, zeros, rows * unit + gap, source, zeros, columns * unit + 1, rows, columns, unit))
    device = CpuDevice()
    kernel = device.load(build_kernel(Kernel("k", (source,), (target,), (), w.finish()), device.target))
    data = np.random.default_rng(1).integers(0, 256, source.bytes, dtype=np.uint8)
    into = device.allocate(target.bytes)
    kernel.launch([device.hold(data), into])
    raw = f"V{kind.bytes}"
    given = data.view(raw).reshape(rows, columns * unit + 1)[:, : columns * unit].reshape(rows, columns, unit)
    wanted = np.zeros(target.shape, raw)
    wanted[:, : rows * unit] = given.swapaxes(0, 1).reshape(columns, rows * unit)
    assert into.read().tobytes() == wanted.tobytes()
