"""Products by dot products and tiles: what they compute, their spaces, and what they leave to others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import workload_of
from tests.sketch_agreement import assert_kernel_agrees, check_schedules
from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.lowering import finish
from tilewright.core.dtypes import float32, float64, int8, int32, uint8
from tilewright.core.target import Target
from tilewright.ir.cpu import DOT_ATOMS
from tilewright.ir.interpret import interpret
from tilewright.ir.verify import verify
from tilewright.runtime.devices import host_target
from tilewright.schedule.cpu.gemm.dot_kernel import (
    SHIFT,
    atom_for,
    lower_amx,
    lower_dot,
    lower_dot_pixel_rows,
    lower_signed_dot,
)
from tilewright.schedule.cpu.gemm.dot_products import CPU_GEMM_AMX, CPU_GEMM_DOT
from tilewright.schedule.cpu.gemm.fma import CPU_GEMM
from tilewright.schedule.cpu.gemm.kernel import CpuGemmSetting
from tilewright.schedule.cpu.gemm.pixel_rows import pixel_rows_of
from tilewright.schedule.cpu.shared_knobs import COLUMNS_INSIDE
from tilewright.schedule.problems.exact_floats import summed_in_floats
from tilewright.schedule.problems.gemm import gemm_of
from tilewright.schedule.sketches import sketches_for
from tilewright.schedule.tile_sketch import TileSketch
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

TILES = replace(
    target_named("x86-64+avx512f+avx512bw+avx512vl+avx512bf16+avx512vnni+amx-tile+amx-bf16+amx-int8"), threads=2
)
DOTS = target_named("x86-64+avx512f+avx512bw+avx512vl+avx512bf16+avx512vnni")
_HERE = host_target("llvm")
WITHOUT_TILES = replace(_HERE, features=tuple(f for f in _HERE.features if not f.startswith("amx")))
SQUARE = workload_of("matmul", m=1024, n=1024, k=1024, dtype="bfloat16")
BYTES = workload_of("matmul", m=1024, n=1024, k=1024, dtype="int8")
TURNED = workload_of("linear", rows=128, inputs=1024, outputs=1024, dtype="bfloat16", activation="relu")

CASES = {
    "plain": workload_of("matmul", m=45, n=53, k=77, dtype="bfloat16"),
    "transposed": workload_of("matmul", m=45, n=53, k=77, dtype="bfloat16", transpose_b=True),
    "even": workload_of("matmul", m=64, n=64, k=128, dtype="bfloat16"),
    "epilogue": workload_of(
        "linear", rows=33, inputs=70, outputs=40, dtype="bfloat16", activation="silu", residual=True
    ),
    "several": workload_of("batch_matmul", batch=2, m=35, n=18, k=40, dtype="bfloat16"),
}
SMALL_DOTS = CpuGemmSetting(mr=3, vectors=2, lanes=16, tiles=4, panels=1, kc=32, pack_a="task", pack_b="task")
SMALL_TILES = replace(SMALL_DOTS, mr=32, tiles=1)


def _agrees(workload: Workload, setting: CpuGemmSetting, *, tiles: bool) -> None:
    product = gemm_of(workload)
    assert product is not None
    atom = atom_for(product)
    assert atom is not None
    kernel = (lower_amx if tiles else lower_dot)(product, "k", setting, atom)
    assert_kernel_agrees(workload, kernel, TILES)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("pack_a", "pack_b"), [("task", "task"), ("whole", "whole")])
@pytest.mark.parametrize("tiles", [False, True], ids=["dots", "tiles"])
def test_kernels_compute_their_expression(case: str, pack_a: str, pack_b: str, tiles: bool) -> None:
    setting = SMALL_TILES if tiles else SMALL_DOTS
    _agrees(CASES[case], replace(setting, pack_a=pack_a, pack_b=pack_b), tiles=tiles)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pack_b", ["task", "whole"])
def test_the_last_panel_of_a_task_may_be_narrower(case: str, pack_b: str) -> None:
    setting = replace(SMALL_DOTS, panels=2, last_vectors=1, pack_b=pack_b)
    _agrees(CASES[case], setting, tiles=False)


@pytest.mark.parametrize("tiles", [False, True], ids=["dots", "tiles"])
def test_the_left_operand_may_be_read_where_it_is(tiles: bool) -> None:
    setting = SMALL_TILES if tiles else SMALL_DOTS
    _agrees(CASES["even"], replace(setting, pack_a="never"), tiles=tiles)


@pytest.mark.parametrize("case", ["even", "epilogue", "several"])
def test_tiles_may_follow_one_another_along_rows(case: str) -> None:
    never = "never" if case == "even" else "whole"
    setting = replace(SMALL_TILES, tiles=2, panels=2, pack_a=never, order=COLUMNS_INSIDE)
    for panels in (2, 3):
        _agrees(CASES[case], replace(setting, panels=panels, non_temporal=panels == 3), tiles=True)


@pytest.mark.parametrize("transposed", [False, True])
def test_bytes_are_multiplied_exactly(transposed: bool) -> None:
    workload = workload_of("matmul", m=45, n=53, k=77, dtype="int8", transpose_b=transposed)
    _agrees(workload, replace(SMALL_TILES, kc=64), tiles=True)


@pytest.mark.parametrize("pack", ["task", "whole"])
@pytest.mark.parametrize("kc", [24, 80])
def test_signed_bytes_are_shifted_and_back(pack: str, kc: int) -> None:
    workload = workload_of("matmul", m=11, n=37, k=77, dtype="int8")
    product = gemm_of(workload)
    assert product is not None
    kernel = lower_signed_dot(product, "k", replace(SMALL_DOTS, kc=kc, pack_a=pack, pack_b=pack))
    verify(kernel)
    inputs = random_inputs(workload, 1)
    got = interpret(finish(kernel, TILES), inputs)
    np.testing.assert_array_equal(got["C"], reference(workload, inputs)["C"])


@pytest.mark.skipif("avx512bf16" not in host_target("llvm").features, reason="this CPU has no avx512bf16")
@pytest.mark.parametrize("case", ["odd", "transposed"])
def test_compiled_dot_products_agree(case: str) -> None:
    workload = workload_of("matmul", m=67, n=71, k=131, dtype="bfloat16", transpose_b=case == "transposed")
    assert check_schedules("cpu_gemm_dot", WITHOUT_TILES, workload, 1, 2) == 2


@pytest.mark.skipif("avx512vnni" not in host_target("llvm").features, reason="this CPU has no avx512vnni")
def test_compiled_dot_products_of_bytes_agree() -> None:
    workload = workload_of("matmul", m=67, n=71, k=131, dtype="int8")
    assert check_schedules("cpu_gemm_dot", WITHOUT_TILES, workload, 1, 2) == 2


CONVOLUTIONS = {
    "padded": {"padding": 1},
    "inside": {"padding": 0},
    "strides": {"padding": 1, "stride": 2, "bias": True},
    "far apart": {"dilation": 2, "padding": 2},
    "groups": {"channels": 8, "filters": 22, "groups": 2, "padding": 1},
}


def _convolution(**parameters: Any) -> Workload:
    given = {"batch": 2, "channels": 4, "height": 7, "width": 9, "filters": 11, "kernel_h": 3, "kernel_w": 3}
    return workload_of("conv2d", **{**given, "layout": "NHWC", "dtype": "int8", **parameters})


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("pack_b", ["task", "whole"])
def test_convolutions_of_bytes_are_dot_products_of_channels(case: str, pack_b: str) -> None:
    """The border of shifted images is shifted as well."""
    workload = _convolution(**CONVOLUTIONS[case])
    product, rows = pixel_rows_of(workload, (uint8, int8)) or pytest.fail("no such convolution")
    setting = replace(SMALL_DOTS, kc=rows.depth, pack_a="task", pack_b=pack_b)
    kernel = lower_dot_pixel_rows(product, "k", setting, replace(rows, shift=SHIFT))
    verify(kernel)
    inputs = random_inputs(workload, 1)
    got, want = interpret(finish(kernel, DOTS), inputs), reference(workload, inputs)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def _bytes(left: str, right: str) -> Workload:
    a, b, k = te.placeholder((67, 132), left, "A"), te.placeholder((132, 71), right, "B"), te.reduce_axis(132, "k")
    body = lambda i, j: te.sum(te.cast(a[i, k], "int32") * te.cast(b[k, j], "int32"), axis=k)  # noqa: E731
    return te.workload(te.compute((67, 71), body, "C"), inputs=[a, b])


@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("sketch", [CPU_GEMM_DOT, CPU_GEMM_AMX])
def test_bytes_with_and_without_a_sign_are_multiplied(left: str, right: str, sketch: TileSketch) -> None:
    workload, target = _bytes(left, right), TILES if sketch is CPU_GEMM_AMX else DOTS
    assert sketches_for(workload, target) == (sketch,)
    tiles = sketch is CPU_GEMM_AMX
    _agrees(workload, replace(SMALL_TILES, kc=64) if tiles else SMALL_DOTS, tiles=tiles)
    target = _HERE if tiles else WITHOUT_TILES
    if ("amx-int8" if tiles else "avx512vnni") in target.features:
        assert check_schedules(sketch.name, target, workload, 1, 2) == 2


@pytest.mark.skipif("avx512vnni" not in host_target("llvm").features, reason="this CPU has no avx512vnni")
def test_compiled_convolutions_of_bytes_agree() -> None:
    workload = _convolution(channels=16, height=14, width=15, filters=35, padding=1)
    assert check_schedules("cpu_gemm_dot", host_target("llvm"), workload, 1, 2) == 2


def test_bytes_that_no_instruction_multiplies_are_summed_up_in_floats() -> None:
    """As long as those hold the sums."""
    sizes = {"m": 64, "n": 64, "dtype": "int8"}
    dtypes = []
    for k in (1023, 1024, 131_071, 131_072):
        product = gemm_of(summed_in_floats(workload_of("matmul", k=k, **sizes)))
        assert product is not None
        dtypes.append(product.accumulator.dtype)
    assert dtypes == [float32, float64, float64, int32]
    avx2 = Target("llvm", "x86-64", ("avx2", "fma"), threads=2, vector_bytes=32)
    for workload in (BYTES, _convolution(channels=16, height=28, width=28, filters=64)):
        assert sketches_for(workload, avx2) == (CPU_GEMM,)
        assert CPU_GEMM not in sketches_for(workload, DOTS)
    few = _convolution(channels=3, height=28, width=28, filters=64)
    assert sketches_for(few, DOTS) == (CPU_GEMM,)


@pytest.mark.parametrize(("m", "n", "k"), [(67, 71, 200), (37, 39, 1500)])
def test_compiled_sums_in_floats_are_exact(m: int, n: int, k: int) -> None:
    host = host_target("llvm")
    target = replace(host, features=tuple(f for f in host.features if "vnni" not in f and "amx" not in f))
    workload = workload_of("matmul", m=m, n=n, k=k, dtype="uint8")
    assert check_schedules("cpu_gemm", target, workload, 1, 2) == 2


@pytest.mark.skipif("amx-bf16" not in host_target("llvm").features, reason="this CPU has no tiles")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_compiled_tiles_agree(dtype: str) -> None:
    workload = workload_of("matmul", m=67, n=71, k=331, dtype=dtype)
    assert check_schedules("cpu_gemm_amx", host_target("llvm"), workload, 1, 2) == 2


def test_which_instructions_multiply_what() -> None:
    found = [gemm_of(w) for w in (SQUARE, BYTES, workload_of("matmul", m=64, n=64, k=64))]
    assert [p and atom_for(p) for p in found] == [DOT_ATOMS["bf16"], DOT_ATOMS["s8s8"], None]
    assert sketches_for(SQUARE, TILES) == (CPU_GEMM_AMX,)
    assert sketches_for(SQUARE, DOTS) == (CPU_GEMM, CPU_GEMM_DOT)
    assert sketches_for(BYTES, TILES) == (CPU_GEMM_AMX,)
    assert sketches_for(BYTES, DOTS) == (CPU_GEMM_DOT,)
    transposed = workload_of("matmul", m=512, n=512, k=512, dtype="bfloat16", transpose_a=True)
    assert sketches_for(transposed, TILES) == (CPU_GEMM,)  # the left operand does not lie along the sum


@pytest.mark.parametrize(("sketch", "workload"), [(CPU_GEMM_DOT, SQUARE), (CPU_GEMM_AMX, SQUARE), (CPU_GEMM_AMX, BYTES),
                                                  (CPU_GEMM_AMX, TURNED)])  # fmt: skip
def test_spaces_are_of_some_hundreds(sketch: TileSketch, workload: Workload) -> None:
    space = sketch.space(workload, DOTS if sketch is CPU_GEMM_DOT else TILES)
    assert 20 <= len(space) <= 1000
    assert (space.quantities["edge_waste"] <= 0.1).all()
    if sketch is CPU_GEMM_AMX:
        assert (space.quantities["accumulators"] == 4).all()
