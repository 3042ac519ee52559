"""Rows that are made of segments, and rows of which something is read for each segment."""

from math import prod
from typing import Any

import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, legal_schedule_of, schedule_of, workload_of
from tests.sketch_agreement import check_dynamic
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.emit.access import strided_offset, vector_accesses
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.buffer import MemoryScope
from tilewright.ir.rewrite import loads_of, stores_of
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.rowwise.cooperative import CUDA_ROWWISE_COOPERATIVE
from tilewright.schedule.gpu.rowwise.space import AMDGPU_ROWWISE, CUDA_ROWWISE
from tilewright.schedule.gpu.rowwise.split import CUDA_ROWWISE_SPLIT
from tilewright.schedule.problems.rowwise import rowwise_problem
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.dynamic import with_dynamic
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

SMALL = Target("cuda", "sm_90a", threads=8, vector_bytes=16)
"""A device of few multiprocessors, so that the interpreter has few threads to run."""


def _batch_norm(images: int, channels: int, *pixels: int) -> Workload:
    """A batch norm in training, of images of one axis or of several: statistics of each channel, and the norm."""
    names, count = [f"p{n}" for n in range(len(pixels))], images * prod(pixels)
    ranges = ", ".join([f"n < {images}", *(f"{name} < {extent}" for name, extent in zip(names, pixels, strict=True))])
    element = f"X[n, c, {', '.join(names)}]"
    centred = f"(float32({element}) - M[c] / {count})"
    return parse_workload(
        f"X: float16[{images}, {channels}, {', '.join(map(str, pixels))}]\n"
        f"M[c] = sum over {ranges} of float32({element})\n"
        f"V[c] = sum over {ranges} of {centred} * {centred}\n"
        f"Y[n, c, {', '.join(names)}] = float16({centred} / sqrt(V[c] / {count} + 1e-5))"
    )


SEGMENTS = {
    "sums over the first and the last axis": workload_of("reduce", shape=[7, 6, 40], axes=[0, 2], dtype="float16"),
    "odd segments": workload_of("reduce", shape=[7, 6, 33], axes=[0, 2], dtype="float16"),
    "segments of two axes": workload_of("reduce", shape=[7, 5, 6, 8], axes=[0, 2, 3], kind="mean"),
    "segments of two rows of axes": workload_of("reduce", shape=[4, 5, 6, 7], axes=[1, 3], kind="max"),
    "products of integers": workload_of("reduce", shape=[4, 6, 40], axes=[0, 2], kind="prod", dtype="int32"),
    "batch norm in training": _batch_norm(6, 5, 48),
    "batch norm of odd images": _batch_norm(5, 3, 49),
    "weights of columns, and of segments": parse_workload(
        "X: float32[4, 6, 40]\nW: float32[40]\nV: float32[4]\n"
        "t[j] = sum over i < 4, k < 40 of X[i, j, k] * W[k]\nY[i, j, k] = X[i, j, k] * V[i] + t[j] * W[k]"
    ),
    "vectors that run over two axes": _batch_norm(4, 3, 6, 14),
    "vectors that run over three axes": parse_workload(
        "X: float32[4, 6, 2, 6, 10]\nW: float32[2, 6, 10]\nV: float32[4, 6]\n"
        "t[j] = sum over i < 4, a < 2, k < 6, l < 10 of X[i, j, a, k, l] * W[a, k, l]\n"
        "Y[i, j, a, k, l] = X[i, j, a, k, l] * V[i, j] + t[j] * W[a, k, l] + float32(l)"
    ),
    "weights of the last of three axes": parse_workload(
        "X: float32[4, 6, 2, 6, 10]\nW: float32[6, 10]\n"
        "t[j] = sum over i < 4, a < 2, k < 6, l < 10 of X[i, j, a, k, l] * W[k, l]\n"
        "Y[i, j, a, k, l] = X[i, j, a, k, l] + t[j] * W[k, l]"
    ),
    "a part of images": parse_workload(
        "X: float16[4, 6, 6, 12]\nt[j] = sum over i < 4, k < 6, l < 10 of float32(X[i, j, k, l])"
    ),
    "an axis of one": parse_workload(
        "X: float32[4, 1, 6, 40]\nt[o < 1, j] = sum over i < 4, k < 40 of X[i, 0, j, k]\n"
        "Y[i, o < 1, j, k] = X[i, o, j, k] - t[0, j]"
    ),
    "a dimension without an axis": parse_workload(
        "X: float32[4, 3, 6, 40]\nt[j] = sum over i < 4, k < 40 of X[i, 0, j, k]\n"
        "Y[i, o < 1, j, k] = X[i, 0, j, k] - t[j]"
    ),
    "reduced axes that are kept": parse_workload(
        "X: float32[4, 6, 40]\nt[o < 1, j, q < 1] = sum over i < 4, k < 40 of X[i, j, k]\n"
        "Y[i, j, k] = X[i, j, k] - t[0, j, 0]\nZ[o < 1, j, q < 1] = t[o, j, q] * 2"
    ),
}
"""Rows that are not contiguous."""
ROWS = {
    "group norm": workload_of("group_norm", batch=3, channels=12, pixels=40, groups=3, dtype="float16"),
    "group norm of odd images": workload_of("group_norm", batch=3, channels=12, pixels=35, groups=3, dtype="float16"),
    "group norm, channels last": workload_of(
        "group_norm", batch=3, channels=12, pixels=35, groups=3, layout="NHWC", dtype="float16"
    ),
    "instance norm": workload_of("group_norm", batch=2, channels=3, pixels=320, groups=3),
    "a batch of one": _batch_norm(1, 3, 48),
    "a reduced axis that is kept": parse_workload(
        "X: float32[6, 40]\nt[j, q < 1] = sum over k < 40 of X[j, k]\nY[j, k] = X[j, k] - t[j, 0]"
    ),
    "odd rows in another order": parse_workload(
        "X: float16[2, 3, 2011]\nY[j, i] = sum over k < 2011 of float32(X[i, j, k])"
    ),
    "rows in another order": parse_workload("X: float32[4, 6, 40]\nY[j, i] = sum over k < 40 of X[i, j, k]"),
    "an axis of one behind columns": parse_workload(
        "X: float16[6, 40, 1]\nB: float16[1]\nM[i, z < 1] = max over j < 40 of float32(X[i, j, z])\n"
        "S[i, z < 1] = sum over j < 40 of exp(float32(X[i, j, z]) - M[i, z])\n"
        "Y[i, j, z < 1] = float16(exp(float32(X[i, j, z]) - M[i, z]) / S[i, z] + float32(B[z]))"
    ),
    "axes of one around columns": parse_workload(
        "X: float32[6, 1, 40, 1]\nS[i, o < 1, z < 1] = argmax over j < 40 of X[i, o, j, z]"
    ),
    "columns in another order": parse_workload(
        "X: float32[4, 6, 40]\nY[i] = sum over k < 40, j < 6 of select(j < 3, X[i, j, k], 2)"
    ),
}
"""Contiguous rows that are read in another order, or with something for each segment."""


@pytest.mark.parametrize("case", [*SEGMENTS, *ROWS])
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(CUDA_ROWWISE, (SEGMENTS | ROWS)[case], 4, SMALL, WHOLE) == 4


def _random(seed: int) -> Workload:
    """A reduction of random axes of a tensor, perhaps of a part of it, and with a weight of random axes."""
    draw = stream(seed, "segments")
    extents = [*draw.choice([1, 2, 3, 5, 6, 8, 12], int(draw.integers(1, 5))), draw.choice([2, 3, 8, 12, 33, 40])]
    axes = [f"a{n}" for n in range(len(extents))]
    ranges = [f"{a} < {e}" for a, e in zip(axes, extents, strict=True)]
    mixed = [int(n) for n in draw.permutation(len(axes))]
    reduced = [n for n in mixed if n == len(axes) - 1 or draw.random() < 0.5]
    weighted = sorted(mixed[: int(draw.integers(1, len(axes) + 1))])
    shape = ", ".join(str(e + (draw.random() < 0.1)) for e in extents)
    element, weight = f"float32(X[{', '.join(axes)}])", f"W[{', '.join(axes[n] for n in weighted)}]"
    kept = [n for n in mixed if n not in reduced]
    product = f" * {weight}" if draw.random() < 0.3 else ""
    return parse_workload(
        f"X: {draw.choice(['float16', 'float32'])}[{shape}]\n"
        f"W: float32[{', '.join(str(extents[n]) for n in weighted)}]\n"
        f"t[{', '.join(ranges[n] for n in kept)}] = {draw.choice(['sum', 'max'])} over "
        f"{', '.join(ranges[n] for n in reduced)} of {element}{product}\n"
        f"Y[{', '.join(ranges)}] = ({element} - t[{', '.join(axes[n] for n in kept)}]) * {weight}"
    )


@pytest.mark.parametrize("seeds", [range(6), range(6, 12)], ids=str)
def test_random_segments(seeds: range) -> None:
    taken = [w for w in map(_random, seeds) if CUDA_ROWWISE.matches(w, SMALL)]
    assert len(taken) >= 4
    assert all(assert_agrees(CUDA_ROWWISE, w, 3, SMALL, WHOLE) >= 1 for w in taken)


def test_a_row_has_the_columns_of_all_its_segments() -> None:
    problem = rowwise_problem(_batch_norm(64, 256, 784))
    assert problem is not None
    assert (problem.rows, problem.columns, problem.order, problem.segment) == ((256,), (64, 784), (1, 0, 2), 784)
    assert problem.has_moments and not problem.is_plain
    assert [b.name for b in problem.row_inputs] == ["X"] and not problem.broadcast_loads
    problem = rowwise_problem(workload_of("reduce", shape=[5, 6, 7, 8], axes=[0, 2, 3]))
    assert problem is not None and (problem.columns, problem.segment) == ((5, 7, 8), 56)
    problem = rowwise_problem(workload_of("group_norm", batch=2, channels=12, pixels=40, groups=3))
    assert problem is not None and (problem.order, problem.segment, problem.is_plain) == ((), 160, False)
    problem = rowwise_problem(workload_of("group_norm", batch=2, channels=12, pixels=40, groups=3, affine=False))
    assert problem is not None and problem.is_plain


@pytest.mark.parametrize(
    ("case", "axes"),
    [
        ("vectors that run over two axes", 2),
        ("vectors that run over three axes", 3),
        ("weights of the last of three axes", 2),
        ("a part of images", 1),
        ("group norm of odd images", 2),
    ],
)
def test_vectors_run_over_axes_that_all_vectors_have_in_common(case: str, axes: int) -> None:
    problem = rowwise_problem((SEGMENTS | ROWS)[case])
    assert problem is not None and problem.vector_axes == axes


def test_sums_of_products_of_several_tensors_stay_contraction_chains() -> None:
    chain = parse_workload(
        "A: float32[24, 32]\nx: float32[24]\ny: float32[32]\nt[] = sum over i < 24, j < 32 of x[i] * A[i, j] * y[j]"
    )
    assert rowwise_problem(chain) is None
    assert SKETCHES["cuda_chain"].matches(chain, H200)


@pytest.mark.parametrize("case", ["batch norm in training", "vectors that run over three axes"])
def test_amd_devices_take_segments_too(case: str) -> None:
    target = Target("amdgpu", "gfx942", threads=8, vector_bytes=16)
    assert assert_agrees(AMDGPU_ROWWISE, SEGMENTS[case], 4, target, WHOLE) == 4


FEW = {
    "sums": workload_of("reduce", shape=[9, 2, 200], axes=[0, 2], dtype="float16"),
    "greatest of several axes": workload_of("reduce", shape=[9, 3, 5, 33], axes=[0, 2, 3], kind="max"),
    "columns of one axis, rows in another order": parse_workload(
        "X: float32[2, 3, 4200]\nY[j, i] = sum over k < 4200 of X[i, j, k]"
    ),
    "rows in another order, without a divisor": parse_workload(
        "X: float16[2, 3, 20011]\nY[j, i] = sum over k < 20011 of float32(X[i, j, k])"
    ),
    "a batch of one": workload_of("reduce", shape=[1, 2, 4200], axes=[0, 2], dtype="float16"),
    "batch norm in training": _batch_norm(15, 2, 9000),
    "group norm of one group": workload_of("group_norm", batch=2, channels=16, pixels=9000, groups=1, dtype="float16"),
}
"""Few long rows."""


@pytest.mark.parametrize("case", FEW)
def test_few_long_rows_are_split_where_segments_end(case: str) -> None:
    assert assert_agrees(CUDA_ROWWISE_SPLIT, FEW[case], 4, SMALL, WHOLE) >= 2


def test_odd_segments_are_parts_with_wide_vectors() -> None:
    """An H200 takes 57 us for these greatest elements where the vectors of a row have one element."""
    odd = workload_of("reduce", shape=[100, 300, 2001], axes=[0, 2], kind="max", dtype="float16")
    schedule = default_schedule(odd, H200)
    assert schedule.sketch == CUDA_ROWWISE_SPLIT.name and schedule["vector_width"] == 8
    small = workload_of("reduce", shape=[3, 70, 521], axes=[0, 2], kind="max", dtype="float16")
    assert assert_agrees(CUDA_ROWWISE_SPLIT, small, 4, SMALL, WHOLE) == 4
    even = workload_of("reduce", shape=[100, 300, 2000], axes=[0, 2], kind="max", dtype="float16")
    assert not CUDA_ROWWISE_SPLIT.matches(even, H200)


def test_an_axis_of_one_behind_columns_does_not_matter() -> None:
    """Sums over 4096 neighbours of 4096 rows took an H200 274 us by the prior, as columns of one element."""
    plain, behind = (workload_of("reduce", shape=[4096, 4096, *more], axes=[1], dtype="float16") for more in ((), (1,)))
    texts = []
    for workload in (plain, behind):
        schedule = default_schedule(workload, H200)
        assert schedule.sketch == CUDA_ROWWISE.name
        texts.append(backend_for(H200).emit(finish(CUDA_ROWWISE.lower(workload, H200, schedule), H200), H200).text)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("case", ["batch norm in training", "group norm of one group"])
def test_few_long_rows_of_one_cooperative_launch(case: str) -> None:
    assert assert_agrees(CUDA_ROWWISE_COOPERATIVE, FEW[case], 4, SMALL, WHOLE) == 4


def test_the_first_dimension_may_be_dynamic_where_it_numbers_rows() -> None:
    rows = workload_of("reduce", shape=[130, 3, 4, 8], axes=[1, 3], dtype="float16")
    assert check_dynamic("cuda_rowwise", H200, with_dynamic(rows, representative=64), [(1,), (67,), (130,)], 3) >= 2


LARGE = {
    "group norm": workload_of("group_norm", batch=16, channels=320, pixels=4096, groups=32, dtype="float16"),
    "instance norm": workload_of("group_norm", batch=16, channels=64, pixels=65536, groups=64, dtype="float16"),
    "sums of two axes": workload_of("reduce", shape=[64, 512, 1024], axes=[0, 2], dtype="float16"),
    "sums of three axes": workload_of("reduce", shape=[64, 512, 32, 32], axes=[0, 2, 3]),
    "batch norm in training": _batch_norm(64, 256, 784),
    "batch norm of images": _batch_norm(64, 256, 28, 28),
}


@pytest.mark.parametrize("case", LARGE)
def test_defaults_read_and_write_sixteen_bytes_at_a_time(case: str) -> None:
    workload = LARGE[case]
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == CUDA_ROWWISE.name
    kernel = CUDA_ROWWISE.lower(workload, H200, schedule)
    for name, taken in build_kernel(kernel, H200).resources.items():
        assert taken.spill_bytes == 0, name
    final = finish(kernel, H200)
    accesses = [(load.buffer, load.indices) for load in loads_of(final.body)]
    accesses += [(store.buffer, store.indices) for store in stores_of(final.body)]
    rows = [b for b in (*final.inputs, *final.outputs) if b.elements > 16384]
    vectors = {}
    for buffer, indices in accesses:
        if buffer.scope is MemoryScope.GLOBAL and buffer in rows:
            found = strided_offset(indices, buffer.strides)
            lanes = indices[-1].lanes
            assert found is not None
            vectors[buffer.name] = list(vector_accesses([(buffer, found.base)], lanes)), lanes * buffer.dtype.bytes
    assert vectors == {b.name: ([(0, 16)], 16) for b in rows}


def test_only_contiguous_rows_are_prefetched() -> None:
    """A prefetch has one range of memory."""
    taken: dict[str, Any] = {"row_storage": "registers", "cluster_size": 1, "rows_per_cta": 1}
    texts = {}
    for name in ("group norm", "batch norm in training"):
        schedule = legal_schedule_of(CUDA_ROWWISE, LARGE[name], threads_per_row=512, vector_width=8, **taken)
        texts[name] = repr(CUDA_ROWWISE.lower(LARGE[name], H200, schedule).body)
    assert "Prefetch" in texts["group norm"] and "Prefetch" not in texts["batch norm in training"]


def test_the_prior_knows_that_short_segments_waste_sectors() -> None:
    short, long = (workload_of("reduce", shape=[512, 4096 // n, 16 * n], axes=[0, 2]) for n in (1, 8))
    best = {w: min(CUDA_ROWWISE.prior_seconds(w, H200, [schedule_of(CUDA_ROWWISE, w)])) for w in (short, long)}
    assert best[short] > 1.2 * best[long]
