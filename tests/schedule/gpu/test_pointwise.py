"""Pointwise kernels: what they take, what they compute, and what the compiler makes of them."""

import re
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, compiled, legal_schedule_of, schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.inspect.disassemble import sass_of
from tilewright.codegen.lowering import build_kernel, finish, lowering_stages
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.ir.buffer import MemoryScope
from tilewright.ir.expr import Load, Ramp
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import loads_of, stores_of
from tilewright.ir.stmt import Launch, walk_statements
from tilewright.ir.verify import verify
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.pointwise.space import CUDA_POINTWISE as SKETCH
from tilewright.schedule.problems.pointwise import MOST_POINTS, pointwise_of
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

GELU = workload_of("elementwise", shape=[8192, 8192], functions=["gelu_tanh"], dtype="float16")
BROADCAST = workload_of("broadcast_affine", rows=8192, columns=8192, dtype="float16")


def _shifted() -> Workload:
    x = te.placeholder((6, 16), "float32", "X")
    return te.workload(
        te.compute((6, 16), lambda i, j: te.select(te.all_of(i >= 1, j >= 2), x[i - 1, j - 2], 7.0) + x[i, j], "Y")
    )


def _joined() -> Workload:
    a, b = te.placeholder((5, 16), "float16", "A"), te.placeholder((5, 24), "float16", "B")
    return te.workload(te.compute((5, 40), lambda i, j: te.select(j < 16, a[i, j], b[i, j - 16]), "Y"))


def _several_outputs() -> Workload:
    x, bias = te.placeholder((9, 4, 8), "float16", "X"), te.placeholder((4,), "float32", "B")
    wide = te.compute((9, 4, 8), lambda i, c, j: te.cast(x[i, c, j], "float32") + bias[c], "wide")
    narrow = te.compute((9, 4, 8), lambda i, c, j: te.cast(wide[i, c, j] * 0.5, "float16"), "narrow")
    return te.workload([wide, narrow])


def _chosen_by_data() -> Workload:
    x, y = te.placeholder((96,), "float32", "X"), te.placeholder((96,), "float32", "Z")
    return te.workload(te.compute((96,), lambda i: te.select(x[i] > 0.0, y[i], x[i] * 2.0), "Y"))


def _numbered() -> Workload:
    x = te.placeholder((4, 32), "int8", "X")
    return te.workload(te.compute((4, 32), lambda i, j: te.cast(x[i, j], "int64") * 3 + i * 100 + j, "Y"))


def _slices() -> Workload:
    x = te.placeholder((3, 7, 64), "float16", "X")
    return te.workload(te.compute((7, 3, 40), lambda i, b, j: x[b, i, j + 3], "Y"))


def _reversed() -> Workload:
    x = te.placeholder((5, 24), "float32", "X")
    return te.workload(te.compute((5, 24), lambda i, j: x[i, 23 - j] + x[i, j], "Y"))


def _gathered() -> Workload:
    x, places = te.placeholder((9, 8), "float32", "X"), te.placeholder((6,), "int64", "P")
    return te.workload(te.compute((6, 8), lambda i, j: x[te.within(places[i], 9), j] * 2.0, "Y"))


def _odd_rows() -> Workload:
    return workload_of("broadcast_affine", rows=16, columns=37, dtype="float16")


def _interleaved() -> Workload:
    a, b = te.placeholder((8, 9), "float16", "A"), te.placeholder((8, 9), "float16", "B")
    return te.workload(te.compute((8, 18), lambda i, j: te.select(te.equal(j % 2, 0), a[i, j // 2], b[i, j // 2]), "Y"))


def _pixels_shuffled() -> Workload:
    x = te.placeholder((2, 12, 4, 4), "float16", "X")
    return te.workload(te.compute((2, 3, 4, 2, 4, 2), lambda n, c, h, r, w, s: x[n, c * 4 + r * 2 + s, h, w], "Y"))


def _largest_of_windows() -> Workload:
    x = te.placeholder((2, 3, 9, 10), "float32", "X")
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(3, "s")

    def window(n: Any, c: Any, i: Any, j: Any) -> Any:
        h, w = 2 * i + r - 1, 2 * j + s - 1
        inside = te.all_of(h >= 0, h < 9, w >= 0, w < 10)
        return te.max(te.select(inside, x[n, c, h, w], float("-inf")), axis=(r, s))

    top = te.compute((2, 3, 5, 5), window, "top")
    return te.workload(te.compute((2, 3, 5, 5), lambda n, c, i, j: te.maximum(top[n, c, i, j], 0.5), "Y"))


def _means_of_windows() -> Workload:
    x, s = te.placeholder((4, 6, 32), "float16", "X"), te.reduce_axis(4, "s")
    total = te.compute((4, 6, 15), lambda n, c, j: te.sum(te.cast(x[n, c, 2 * j + s], "float32"), axis=s), "total")
    return te.workload(te.compute((4, 6, 15), lambda n, c, j: te.cast(total[n, c, j] * 0.25, "float16"), "Y"))


def _small_matrices() -> Workload:
    return workload_of("batch_matmul", batch=37, m=4, n=3, k=5, dtype="float16", bias=True)


def _colours() -> Workload:
    text = "M: float32[3, 3]\nX: float32[2, 3, 5, 8]\nY[n, c, y, x] = sum over k < 3 of M[c, k] * X[n, k, y, x]"
    return parse_workload(text)


def _phases_of_channels() -> Workload:
    sizes = {"batch": 2, "channels": 8, "height": 3, "width": 5, "filters": 8, "groups": 8, "layout": "NHWC"}
    return workload_of("conv2d_transpose", **sizes, kernel_h=4, kernel_w=4, stride=2, padding=1, dtype="float16")


def _pooled_with_positions() -> Workload:
    """The greatest element of each window, and which one it is; nothing is greater than what is outside."""
    inside = "y * 2 + k // 3 >= 1 and x * 2 + k % 3 >= 1"
    at = "n, max(y * 2 + k // 3 - 1, 0), max(x * 2 + k % 3 - 1, 0), c"
    points = f"of select({inside}, X[{at}], -inf)"
    return parse_workload(f"""
        X: float16[2, 9, 7, 5]
        Y[n, y < 4, x < 3, c] = max over k < 9 {points}         # output
        P[n, y < 4, x < 3, c] = argmax over k < 9 {points}      # output""")


def _lengths() -> Workload:
    """Norms and directions of short vectors of bytes."""
    return parse_workload("""
        X: uint8[4, 25, 3]
        S[n, i] = sum over c < 3 of float32(X[n, i, c]) * float32(X[n, i, c])
        Y[n, i] = sqrt(S[n, i])                                          # output
        B[n, i] = argmin over c < 3 of X[n, i, c]                        # output""")


def _planes_of_pixels() -> Workload:
    text = "X: uint8[2, 9, 32, 3]\nM: float32[3]\nY[n, c < 3, y < 9, x < 32] = (float32(X[n, y, x, c]) - M[c]) / 255"
    return parse_workload(text)


def _pixels_of_planes() -> Workload:
    text = "X: float32[2, 3, 9, 32]\nY[n, y < 9, x < 32, c < 3] = uint8(min(max(X[n, c, y, x] * 255, 0.0), 255.0))"
    return parse_workload(text)


SMALL = (_small_matrices, _colours, _phases_of_channels)
SCATTERED = (
    _reversed,
    _gathered,
    _odd_rows,
    _interleaved,
    _pixels_shuffled,
    _largest_of_windows,
    _means_of_windows,
    _pooled_with_positions,
    _lengths,
    _planes_of_pixels,
    _pixels_of_planes,
    *SMALL,
)
WHOLE = (_shifted, _joined, _several_outputs, _chosen_by_data, _numbered, _slices)
CASES = {f.__name__.strip("_"): f for f in (*WHOLE, *SCATTERED)}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 4) >= 2


@pytest.mark.parametrize("case", CASES)
def test_settings_that_are_pruned_compute_it_too(case: str) -> None:
    assert_agrees(SKETCH, CASES[case](), 2, policy=SpacePolicy(prune=False))


def test_a_scalar_is_a_workload_too() -> None:
    x = te.placeholder((), "float32", "X")
    assert_agrees(SKETCH, te.workload(te.compute((), lambda: x[()] + 1.0, "Y")))


def test_what_it_leaves_to_others() -> None:
    x = te.placeholder((64, 64), "float32", "X")
    transposed = te.compute((64, 64), lambda i, j: x[j, i], "Y")
    shapes = [te.compute((64, 64), lambda i, j: x[i, j], "Y"), te.compute((64,), lambda i: x[i, 0], "Z")]
    for outputs in ([transposed], shapes):
        assert not SKETCH.matches(te.workload(outputs), H200)
    assert not SKETCH.matches(workload_of("softmax", rows=8, columns=32), H200)
    assert not SKETCH.matches(workload_of("matmul", m=64, n=64, k=16), H200)
    assert not SKETCH.matches(workload_of("batch_matmul", batch=64, m=8, n=8, k=17), H200)
    long = te.reduce_axis(MOST_POINTS + 1, "s")
    windows = te.compute((8, 60), lambda i, j: te.sum(te.placeholder((8, 200), "float32", "X")[i, j + long], axis=long))
    assert not SKETCH.matches(te.workload(windows), H200)


def test_spaces_are_small_and_settings_distinct() -> None:
    for workload in (GELU, BROADCAST, workload_of("elementwise", shape=[1024, 1024], functions=["relu"])):
        space = SKETCH.space(workload, H200)
        assert 20 <= len(space) <= 100
        assert (space.quantities["waves"] > 0).all() and (space.quantities["registers_estimate"] <= 160).all()
        texts = {str(SKETCH.lower(workload, H200, space.schedule(r)).body) for r in range(len(space))}
        assert len(texts) == len(space)


def test_all_of_a_thread_is_read_in_wide_vectors_before_any_of_it_is_written() -> None:
    kernel = finish(SKETCH.lower(GELU, H200, schedule_of(SKETCH, GELU, vector_width=8, unroll=4, persistent=0)), H200)
    (launch,) = (s for s in walk_statements(kernel.body) if isinstance(s, Launch))
    read, written = stores_of(launch)
    assert isinstance(read.value, Load) and read.value.buffer.name == "X" and written.buffer.name == "Y"
    for indices in (read.value.indices, written.indices):
        assert isinstance(indices[-1], Ramp) and (indices[-1].stride, indices[-1].count) == (1, 8)
    assert {load.buffer.name for load in loads_of(written.value)} == {read.buffer.name}


def test_vectors_run_from_one_odd_row_into_the_next() -> None:
    workload = workload_of("elementwise", shape=[24, 7, 37], functions=["relu"], dtype="float16")
    kernel = SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, vector_width=8))
    text = backend_for(H200).emit(finish(kernel, H200), H200).text
    assert all(f"uint4>(&{name}[block * 1024 + thread * 8])" in text for name in "XY")


def test_rows_that_no_vector_divides_are_stored_as_vectors() -> None:
    """A vector that ends in another row than it begins in takes the values of both rows."""
    rows = workload_of("broadcast_affine", rows=64, columns=37, dtype="float16")
    kernel = SKETCH.lower(rows, H200, schedule_of(SKETCH, rows, vector_width=8))
    text = backend_for(H200).emit(finish(kernel, H200), H200).text
    (output,) = rows.output_buffers
    assert f"uint4>(&{output.name}[block * 1024 + thread * 8])" in text and ") / (unsigned)37" in text


def test_a_trillion_elements_need_no_more_blocks_than_there_may_be() -> None:
    workload = workload_of("elementwise", shape=[1 << 20, (1 << 20) - 1], functions=["relu"], dtype="int8")
    space = SKETCH.space(workload, H200)
    assert len(space) >= 1 and (space.quantities["blocks"] < 2**31).all()
    text = backend_for(H200).emit(finish(SKETCH.lower(workload, H200, space.schedule(0)), H200), H200).text
    assert "long long" in text


def test_persistent_blocks_fill_the_device_once() -> None:
    schedule = schedule_of(SKETCH, GELU, persistent=1)
    derived = SKETCH.derive(GELU, H200, [schedule])
    assert derived["waves"][0] == pytest.approx(1.0) and derived["tiles_per_block"][0] > 1
    (launch,) = (s for s in walk_statements(SKETCH.lower(GELU, H200, schedule).body) if isinstance(s, Launch))
    assert np.prod(launch.blocks) == derived["blocks"][0]


@pytest.mark.parametrize("workload", [GELU, BROADCAST], ids=["gelu", "broadcast"])
@pytest.mark.parametrize("unroll", [1, 4])
def test_compiled_kernels_keep_to_registers(workload: Workload, unroll: int) -> None:
    resources = compiled(SKETCH, workload, vector_width=8, unroll=unroll, threads=256, persistent=0)
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
    assert resources.registers <= 64


def test_vectors_over_odd_rows_of_four_axes_are_stored_as_vectors() -> None:
    """A vector of eight reaches from one row of 127 into the next, so that its four indices are quotients and
    remainders. The first one is the same for all of its elements."""
    workload = workload_of("transpose", shape=[32, 513, 16, 127], axes=[0, 2, 1, 3], dtype="float16")
    schedule = schedule_of(SKETCH, workload, vector_width=8, unroll=1, threads=256)
    source = lowering_stages(workload, H200, schedule).source.text
    assert "recast<uint4>(&Y[block * 2048 + thread * 8])" in source


@pytest.mark.parametrize(
    "text",
    [
        "X: float16[64, 3, 508, 510]\nY[n, c, i, j < 508] = X[n, c, i, j + 1]",
        "X: float16[64, 2048, 127]\nB: float16[127]\nY[n, i, j] = X[n, i, j] + B[j]",
    ],
    ids=["whole quadruples", "whole blocks"],
)
def test_vectors_are_stored_as_vectors_however_their_indices_are_simplified(text: str) -> None:
    """Rows of 508 are whole quadruples, and 2048 rows of 127 whole blocks, so that quotients of the number of a vector
    have smaller divisors."""
    workload = parse_workload(text)
    schedule = schedule_of(SKETCH, workload, vector_width=8, unroll=1, threads=256)
    source = lowering_stages(workload, H200, schedule).source.text
    assert "recast<uint4>(&Y[block * 2048 + thread * 8])" in source


def _rolled() -> Workload:
    x = te.placeholder((24, 31), "float16", "X")
    return te.workload(te.compute((24, 31), lambda i, j: x[i, (j + 7) % 31], "Y"))


@pytest.mark.parametrize(
    "workload",
    [
        workload_of("transpose", shape=[3, 8, 5, 9], axes=[0, 2, 1, 3], dtype="float16"),
        workload_of("transpose", shape=[4, 8, 3, 33], axes=[2, 1, 0, 3], dtype="float32"),
        _rolled(),
    ],
    ids=["permuted", "reversed", "rolled"],
)
def test_vectors_reach_from_row_to_row(workload: Workload) -> None:
    assert assert_agrees(SKETCH, workload, 12, policy=SpacePolicy(prune=False)) == 12
    wide = max(SKETCH.space(workload, H200).column("vector_width"))
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, vector_width=wide)), H200)
    loads = [load for load in loads_of(kernel.body) if load.buffer.name == "X"]
    lanes = {load.lanes for load in loads}
    assert wide >= 4 and lanes == ({1} if loads[0].dtype.bits == 32 else {1, 8})


IN_RUNS = {
    "rolled": "A: float16[7, 33]\nC[i, j < 33] = A[i, (j + 10) % 33]",
    "rolled by few": "A: bfloat16[9, 21]\nC[i, j < 21] = A[i, (j + 3) % 21]",
    "rolled rows": "A: float16[9, 13]\nC[i < 9, j < 13] = A[(i + 4) % 9, j]",
    "rolled aligned rows": "A: float16[5, 48]\nC[i, j < 48] = A[i, (j + 11) % 48]",
    "sliced": "A: float16[11, 23]\nC[i, j < 19] = A[i, j + 3]",
    "flipped": "A: float16[7, 19]\nC[i, j < 19] = A[i, 18 - j]",
    "flipped aligned rows": "A: float16[7, 32]\nC[i < 7, j < 32] = A[6 - i, 31 - j]",
    "padded": "A: float16[6, 17]\n"
    "C[i < 8, j < 21] = select(i >= 1 and i < 7 and j >= 2 and j < 19, A[i - 1, j - 2], 3)",
    "joined": "A: float16[6, 13]\nB: float16[6, 18]\nC[i, j < 31] = select(j < 13, A[i, j], B[i, j - 13])",
    "interleaved": "A: float16[7, 13]\nB: float16[7, 13]\n"
    "C[i, j < 26] = select(j % 2 == 0, A[i, j // 2], B[i, j // 2])",
    "repeated": "A: float16[7, 11]\nC[i, j < 44] = A[i, j // 4]",
    "scaled": "A: float16[7, 27]\nS: float16[27]\nT: float16[7]\nC[i, j < 27] = A[i, j] * S[j] + T[i]",
    "scaled floats": "A: float32[7, 27]\nS: float32[27]\nT: float32[7]\nC[i, j < 27] = A[i, j] * S[j] + T[i]",
    "short rows": "A: float16[31, 9]\nC[i < 31, j < 9] = A[30 - i, j]",
    "few elements": "A: float16[1, 9]\nC[i, j < 9] = A[i, (j + 1) % 9]",
}


@pytest.mark.parametrize("case", IN_RUNS)
def test_vectors_that_are_contiguous_but_at_seams(case: str) -> None:
    """The interpreter finds loads outside of a buffer. Numbers of elements are odd, so that some are in no vector."""
    workload = parse_workload(IN_RUNS[case])
    space = SKETCH.space(workload, H200, policy=SpacePolicy(prune=False))
    wide = int(space.column("vector_width").max())
    inputs = random_inputs(workload, 2)
    absolute, relative = tolerance(workload)["C"]
    for unroll in (1, 4):
        schedule = legal_schedule_of(SKETCH, workload, vector_width=wide, unroll=unroll, threads=128, persistent=0)
        kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
        verify(kernel)
        got, wanted = interpret(kernel, inputs)["C"], reference(workload, inputs)["C"]
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), relative, absolute)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_chunks_of_a_thread_are_loaded_before_any_single_element(dtype: str) -> None:
    """A vector at any offset takes two loads of 16 bytes. The loads of all vectors are not divided by a branch."""
    workload = parse_workload(f"A: {dtype}[1023, 8191]\nC[i, j < 8191] = A[i, (j + 1000) % 8191]")
    schedule = schedule_of(SKETCH, workload, vector_width=8, unroll=2, threads=256)
    kernel = build_kernel(SKETCH.lower(workload, H200, schedule), H200)
    (resources,) = kernel.resources.values()
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0) and resources.registers <= 40
    sass = sass_of(kernel.code)
    if sass is not None:
        loads = [m.start() for m in re.finditer(r"LDG\.E\.128", sass)]
        assert len(loads) == 4
        assert "BRA" not in sass[loads[0] : loads[-1]] and "LDG.E.LTC128B.U16" not in sass[: loads[-1]]


IN_PIECES = {
    "padded by even numbers": "A: float16[3, 18, 50]\n"
    "C[n, i < 24, j < 64] = select(i >= 3 and i < 21 and j >= 6 and j < 56, A[n, i - 3, j - 6], 2)",
    "padded by multiples of four": "A: bfloat16[3, 18, 52]\n"
    "C[n, i < 24, j < 64] = select(i >= 3 and i < 21 and j >= 4 and j < 56, A[n, i - 3, j - 4], 0)",
    "padded floats": "A: float32[3, 18, 50]\n"
    "C[n, i < 24, j < 64] = select(i >= 3 and i < 21 and j >= 6 and j < 56, A[n, i - 3, j - 6], 0)",
    "padded at the end of a call": "A: float16[5, 7, 52]\n"
    "C[n, i < 9, j < 80] = select(i >= 1 and i < 8 and j >= 10 and j < 62, A[n, i - 1, j - 10], 0)",
    "padded bytes": "A: int8[3, 18, 50]\n"
    "C[n, i < 24, j < 64] = select(i >= 3 and i < 21 and j >= 6 and j < 56, A[n, i - 3, j - 6], 1)",
    "joined at an even place": "A: float16[6, 10]\nB: float16[6, 38]\n"
    "C[i, j < 48] = select(j < 10, A[i, j], B[i, j - 10])",
    "padded to short rows": "A: float16[3, 18, 50]\n"
    "C[n, i < 24, j < 58] = select(i >= 3 and i < 21 and j >= 4 and j < 54, A[n, i - 3, j - 4], 1)",
    "floats padded to short rows": "A: float32[3, 18, 52]\n"
    "C[n, i < 24, j < 62] = select(i >= 3 and i < 21 and j >= 4 and j < 56, A[n, i - 3, j - 4], 1)",
    "joined to short rows": "A: float16[8, 14]\nB: float16[8, 40]\n"
    "C[i, j < 54] = select(j < 14, A[i, j], B[i, j - 14])",
    "rolled": "A: float16[8, 44]\nC[i < 8, j < 44] = A[i, (j + 10) % 44]",
    "rolled floats": "A: float32[7, 48]\nC[i < 7, j < 48] = A[i, (j + 10) % 48]",
}


@pytest.mark.parametrize("case", IN_PIECES)
def test_pieces_of_vectors_share_a_condition(case: str) -> None:
    """The interpreter finds loads outside of a buffer. Each load is of two elements at least."""
    workload = parse_workload(IN_PIECES[case])
    assert_agrees(SKETCH, workload, 4)
    wide = int(SKETCH.space(workload, H200).column("vector_width").max())
    schedule = legal_schedule_of(SKETCH, workload, vector_width=wide, unroll=1, threads=128, persistent=0)
    kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
    assert all(1 < load.lanes < wide for load in loads_of(kernel.body) if load.buffer.scope is MemoryScope.GLOBAL)


def test_rows_without_whole_vectors_are_padded_by_pieces() -> None:
    """Rows of 508 floats are vectors of four, all of one condition, and vectors of eight halves have two conditions."""
    for dtype, wide, loads in (("float32", 4, ["LDG.E.128"]), ("float16", 8, ["LDG.E.LTC128B.64"] * 2)):
        inside = "y >= 4 and y < 504 and x >= 4 and x < 504"
        image = f"X: {dtype}[64, 3, 500, 500]\n"
        workload = parse_workload(f"{image}Y[n, c, y < 508, x < 508] = select({inside}, X[n, c, y - 4, x - 4], 0)")
        assert 1 not in SKETCH.space(workload, H200).column("vector_width")
        schedule = schedule_of(SKETCH, workload, vector_width=wide, unroll=1, threads=256)
        sass = sass_of(build_kernel(SKETCH.lower(workload, H200, schedule), H200).code)
        if sass is not None:
            assert re.findall(r"LDG[.A-Z0-9]*", sass) == loads


def test_images_are_padded_by_loads_of_pairs() -> None:
    image = "X: float16[64, 3, 500, 500]\n"
    inside = "y >= 6 and y < 506 and x >= 6 and x < 506"
    workload = parse_workload(f"{image}Y[n, c, y < 512, x < 512] = select({inside}, X[n, c, y - 6, x - 6], 0)")
    schedule = schedule_of(SKETCH, workload, vector_width=8, unroll=1, threads=256)
    sass = sass_of(build_kernel(SKETCH.lower(workload, H200, schedule), H200).code)
    if sass is not None:
        assert re.findall(r"LDG[.A-Z0-9]*", sass) == ["LDG.E"] * 4


def test_pixels_are_shuffled_by_loads_of_four() -> None:
    shape = "A: float16[2, 16, 24, 24]\n"
    workload = parse_workload(f"{shape}C[n, c < 4, y < 48, x < 48] = A[n, c * 4 + y % 2 * 2 + x % 2, y // 2, x // 2]")
    schedule = schedule_of(SKETCH, workload, vector_width=8)
    kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
    assert {load.lanes for load in loads_of(kernel.body) if load.buffer.name == "A"} == {4}
    inputs = random_inputs(workload, 3)
    np.testing.assert_array_equal(interpret(kernel, inputs)["C"], reference(workload, inputs)["C"])


def test_an_odd_number_of_elements_has_vectors() -> None:
    for dtype in ("float16", "float32", "int8"):
        workload = workload_of("elementwise", shape=[7, 23, 5], functions=["relu"], dtype=dtype)
        space = SKETCH.space(workload, H200, policy=SpacePolicy(prune=False))
        assert max(space.column("vector_width")) * workload.inputs[0].dtype.bytes >= 16
        assert_agrees(SKETCH, workload, 12, policy=SpacePolicy(prune=False))


@pytest.mark.parametrize(
    "workload",
    [
        workload_of("transpose", shape=[3, 7, 5, 63], axes=[0, 2, 1, 3], dtype="float16"),
        workload_of("transpose", shape=[2, 5, 3, 131], axes=[2, 1, 0, 3], dtype="float32"),
        te.workload(te.compute((9, 95), lambda i, j: te.placeholder((9, 95), "float16", "X")[i, (j + 7) % 95], "Y")),
    ],
    ids=["permuted", "reversed", "rolled"],
)
def test_warps_share_out_rows(workload: Workload) -> None:
    """Rows of odd lengths by parts of 64 and of 128 elements, of which the last ones have fewer."""
    inputs = random_inputs(workload, 1)
    for unroll, threads in ((1, 512), (2, 128), (4, 256)):
        knobs: dict[str, KnobValue] = {"unroll_along": "row", "unroll": unroll, "threads": threads}
        schedule = legal_schedule_of(SKETCH, workload, **knobs)
        kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
        verify(kernel)
        np.testing.assert_array_equal(interpret(kernel, inputs)["Y"], reference(workload, inputs)["Y"])


def test_the_indices_of_a_row_are_taken_apart_once() -> None:
    workload = workload_of("transpose", shape=[32, 513, 16, 127], axes=[0, 2, 1, 3], dtype="float16")
    schedule = legal_schedule_of(SKETCH, workload, unroll_along="row", unroll=4, threads=256)
    source = lowering_stages(workload, H200, schedule).source.text
    assert "% (unsigned)127" not in source and "/ (unsigned)127" not in source
    with pytest.raises(IllegalSchedule, match="vector_width is 1"):
        knobs = {**dict(schedule.knobs), "vector_width": 4}
        SKETCH.lower(workload, H200, Schedule.of(SKETCH.name, SKETCH.version, knobs))


@pytest.mark.parametrize(
    ("workload", "hinted"),
    [
        (workload_of("transpose", shape=[511, 513], axes=[1, 0], dtype="float16"), True),
        (workload_of("reduce", shape=[8192, 8191], axes=[0]), False),
        (parse_workload("A: float16[64, 513]\nC[i, j < 513] = A[i, (j + 7) % 513]"), True),
        (parse_workload("A: float16[64, 51300]\nC[i, j < 513] = A[i, (j * 100) % 51300]"), False),
        (workload_of("elementwise", shape=[512, 512], functions=["exp"], dtype="float16"), False),
    ],
    ids=["odd transpose", "odd columns by vectors", "roll", "far places", "aligned"],
)
def test_scattered_loads_bring_whole_cache_lines(workload: Workload, hinted: bool) -> None:
    """Not where others do not need the rest of a line, and not where vectors are loaded."""
    source = lowering_stages(workload, H200, default_schedule(workload, H200)).source
    assert ("ld_global_line(&" in source.text) == hinted


def test_neighbours_from_different_lines_take_longer() -> None:
    """Every other pixel, copied with channels last or along the rows of an image."""
    along_channels = parse_workload("X: float16[8, 256, 56, 56]\nY[n, y < 28, x < 28, c] = X[n, c, y * 2, x * 2]")
    along_rows = parse_workload("X: float16[8, 256, 56, 56]\nY[n, c, y < 28, x < 28] = X[n, c, y * 2, x * 2]")
    least = []
    for workload in (along_rows, along_channels):
        prior = SKETCH.space(workload, H200).prior_seconds
        assert prior is not None
        least.append(float(prior.min()))
    assert least[1] > 2 * least[0]


def test_elements_that_several_outputs_read_are_loaded_once() -> None:
    """Of the 32 that eight outputs read, 8 are different, and the compiler sees that of most."""
    taps = [f"float32(X[i, min(max(x // 2 + x % 2 + {k}, 0), 4095)])" for k in (-2, -1, 0, 1)]
    workload = parse_workload(f"X: float16[4096, 4096]\nY[i, x < 8192] = float16({' + '.join(taps)})")
    assert int(dict(default_schedule(workload, H200).knobs)["vector_width"]) > 1
    schedule = schedule_of(SKETCH, workload, vector_width=8, unroll=1, threads=256)
    sass = sass_of(build_kernel(SKETCH.lower(workload, H200, schedule), H200).code)
    if sass is not None:
        assert 8 <= sass.count("LDG") <= 12
    rows = [f"T[min(max(int64(I[i, {j}]), 0), 63)]" for j in ("j", "63 - j")]
    gathered = parse_workload(f"T: float16[64]\nI: int32[8192, 64]\nY[i, j] = {' + '.join(rows)}")
    assert SKETCH.matches(gathered, H200) and len(SKETCH.space(gathered, H200))


@pytest.mark.parametrize("size", [12, 11])
@pytest.mark.parametrize("first", [True, False], ids=["channels first", "channels last"])
def test_a_window_has_the_points_that_a_remainder_leaves(first: bool, size: int) -> None:
    """Of the gradient of a maximum over 3 x 3 with stride 2 these are 2 x 2 of 9, each of which reads two tensors."""
    shape, at = ("2, 8, {0}, {0}", "n, c, {}, {}") if first else ("2, {0}, {0}, 8", "n, {}, {}, c")
    small = (size - 1) // 2 + 1
    places = "(y + 1 - a)", "(x + 1 - b)"
    inside = " and ".join(f"{p} % 2 == 0 and {p} >= 0 and {p} // 2 < {small}" for p in places)
    read = at.format(*(f"{p} // 2" for p in places))
    workload = parse_workload(
        f"X: float16[{shape.format(size)}]\nM: float16[{shape.format(small)}]\nD: float16[{shape.format(small)}]\n"
        f"G[{at.format(f'y < {size}', f'x < {size}')}] = sum over a < 3, b < 3 of "
        f"select({inside}, select(X[{at.format('y', 'x')}] == M[{read}], float32(D[{read}]), 0.0), 0.0)"
    )
    problem = pointwise_of(workload)
    assert problem is not None and len(problem.distinct_loads) == 1 + 2 * 4
    assert assert_agrees(SKETCH, workload, 4) == 4


def test_points_beyond_a_window_are_not_read() -> None:
    """The range of the window alone keeps an index of E inside: a phase may have a point more."""
    workload = parse_workload(
        "X: float32[4, 8]\nE: float32[3, 5, 8]\nW: float32[3, 8]\nY[i < 5, c] = sum over r < 3 of "
        "select((i + 2 - r) % 2 == 0, X[(i + 2 - r) // 2, c] * E[r, i, c], 0.0) * W[r, c]"
    )
    problem = pointwise_of(workload)
    assert problem is not None and len(problem.distinct_loads) == 2 * 3
    assert assert_agrees(SKETCH, workload, 4) == 4


def test_long_sums_of_what_does_not_change_are_not_written_out() -> None:
    """The first two have an element each, which no point of the sum changes."""
    workload = parse_workload(
        "A: float32[40]\nB: float32[40]\nS[i] = sum over k < 700 of A[i]\nT[i] = max over k < 700 of B[i]\n"
        "Y[i] = S[i] + T[i]"
    )
    assert not SKETCH.matches(workload, H200)
    few = parse_workload(
        "A: float32[40]\nS[i] = sum over k < 3 of A[i]\nT[i] = max over k < 3 of A[i]\nY[i] = S[i] + T[i]"
    )
    assert SKETCH.matches(few, H200)
