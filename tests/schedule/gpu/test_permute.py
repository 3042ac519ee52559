"""Transposing copies: what they take, what they compute, and how they spread over the banks of shared memory."""

from collections import Counter
from collections.abc import Mapping
from math import prod

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, compiled, legal_schedule_of, schedule_of, workload_of
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import Const, Expr, Load, Ramp, index
from tilewright.ir.gpu.async_copy import CopyAsync
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import free_variables, loads_of, stores_of, substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.stmt import Launch, walk_statements
from tilewright.ir.verify import verify
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.permute.space import CUDA_PERMUTE as SKETCH
from tilewright.schedule.gpu.permute.tile_rows import input_rows, tile_rows
from tilewright.schedule.problems.permute import permute_of
from tilewright.schedule.tile.load_analysis import flat_offset
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

TRANSPOSE = workload_of("transpose", shape=[8192, 8192], axes=[1, 0], dtype="float16")
IMAGES = workload_of("transpose", shape=[32, 256, 56, 56], axes=[0, 2, 3, 1], dtype="float16")


def _with_epilogue() -> Workload:
    x, bias = te.placeholder((2, 24, 40), "float16", "X"), te.placeholder((24,), "float32", "B")
    y = te.compute(
        (2, 40, 24), lambda n, i, c: te.cast(te.maximum(te.cast(x[n, c, i], "float32") + bias[c], 0.0), "float16"), "Y"
    )
    return te.workload(y)


def _two_inputs() -> Workload:
    x, z, s = (te.placeholder(shape, "float32", n) for n, shape in (("X", (36, 20)), ("Z", (36, 20)), ("S", (20, 36))))
    return te.workload(te.compute((20, 36), lambda i, j: x[j, i] * z[j, i] + s[i, j], "Y"))


def _part() -> Workload:
    x = te.placeholder((50, 70), "int8", "X")
    return te.workload(te.compute((33, 45), lambda i, j: x[j + 5, i + 2], "Y"))


def _channels() -> Workload:
    return workload_of("transpose", shape=[2, 9, 10, 3], axes=[0, 3, 1, 2], dtype="float16")


CASES = {f.__name__.strip("_"): f for f in (_with_epilogue, _two_inputs, _part, _channels)}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 3) >= 2


@pytest.mark.parametrize("case", CASES)
def test_settings_that_are_pruned_compute_it_too(case: str) -> None:
    assert_agrees(SKETCH, CASES[case](), 6, policy=SpacePolicy(prune=False))


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(64, 96), (37, 53), (48, 130)], ids=str)
def test_elements_of_every_size_in_shapes_that_fit_and_do_not(dtype: str, shape: tuple[int, int]) -> None:
    assert_agrees(SKETCH, workload_of("transpose", shape=list(shape), axes=[1, 0], dtype=dtype), 6)


@pytest.mark.parametrize(
    ("dtype", "alignments"), [("int8", (4, 32)), ("float16", (4, 32, 128)), ("float32", (32, 128))]
)
def test_stores_of_odd_rows_are_aligned(dtype: str, alignments: tuple[int, ...]) -> None:
    """Rows of 143 elements begin anywhere in memory. All but their ends is stored by aligned words or vectors."""
    workload = workload_of("transpose", shape=[143, 137], axes=[1, 0], dtype=dtype)
    inputs = random_inputs(workload, 1)
    for alignment, stored_bytes in ((a, b) for a in alignments for b in (4, 16) if a % b == 0):
        tile: dict[str, KnobValue] = {"tile_in": 64, "tile_out": 64, "threads": 256, "store_bytes": stored_bytes}
        schedule = legal_schedule_of(SKETCH, workload, store_alignment=alignment, **tile)
        kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
        verify(kernel)
        np.testing.assert_array_equal(interpret(kernel, inputs)["Y"], inputs["X"].T)
        stored = [s for s in stores_of(kernel.body) if s.buffer.name == "Y"]
        assert max(s.value.lanes for s in stored) * stored[0].buffer.dtype.bytes == stored_bytes


def test_a_tile_has_whole_lines_to_store() -> None:
    workload = workload_of("transpose", shape=[143, 137], axes=[1, 0], dtype="float16")
    schedule = legal_schedule_of(SKETCH, workload, store_alignment=128, tile_in=64, tile_out=64)
    with pytest.raises(IllegalSchedule, match="tile_out elements of the first output are a whole number"):
        SKETCH.lower(workload, H200, Schedule.of(SKETCH.name, SKETCH.version, {**dict(schedule.knobs), "tile_out": 32}))


def test_promising_stores_of_whole_sectors_are_as_wide_as_they_can_be() -> None:
    space = SKETCH.space(workload_of("transpose", shape=[143, 137], axes=[1, 0], dtype="float16"), H200)
    found = set(zip(space.column("store_alignment"), space.column("store_bytes"), strict=True))
    assert found == {(0, 4), (4, 4), (32, 16), (128, 16)}


def test_rows_that_are_aligned_have_no_other_alignment() -> None:
    space = SKETCH.space(TRANSPOSE, H200)
    assert set(space.column("store_alignment")) == {0}
    assert "copy_bytes" not in {k.name for k in space.knobs}


def _odd_batches() -> Workload:
    x = te.placeholder((3, 71, 75), "float16", "X")
    return te.workload(te.compute((3, 67, 69), lambda b, i, j: x[b, j + 2, i + 5], "Y"))


def _flipped() -> Workload:
    x = te.placeholder((69, 67), "float16", "X")
    return te.workload(te.compute((67, 69), lambda i, j: x[68 - j, i], "Y"))


def _odd_inputs() -> Workload:
    x, z = te.placeholder((65, 67), "float16", "X"), te.placeholder((65, 73), "float32", "Z")
    return te.workload(te.compute((67, 65), lambda i, j: te.cast(x[j, i], "float32") + z[j, i + 6], "Y"))


def _reversed(dtype: str) -> Workload:
    return workload_of("transpose", shape=[5, 13, 3, 43], axes=[3, 2, 1, 0], dtype=dtype)


COPIED = {
    **{f"{d}-{n}": workload_of("transpose", shape=[n, 139], axes=[1, 0], dtype=d)
       for d, n in (("int8", 137), ("float16", 131), ("float16", 64), ("float32", 67), ("float64", 65))},
    "reversed": _reversed("float16"),
    "reversed-float32": _reversed("float32"),
    "even-float16": workload_of("transpose", shape=[130, 138], axes=[1, 0], dtype="float16"),
    "batches": _odd_batches(),
    "flipped": _flipped(),
    "inputs": _odd_inputs(),
    "epilogue": _part(),
}  # fmt: skip
"""Their inputs have rows that do not begin at multiples of 16 bytes."""


@pytest.mark.parametrize("case", COPIED)
def test_rows_that_begin_anywhere_are_copied_by_aligned_chunks(case: str) -> None:
    """The interpreter refuses accesses out of bounds, and the verifier copies that are not aligned."""
    workload = COPIED[case]
    space = SKETCH.space(workload, H200, policy=SpacePolicy(prune=False))
    inputs = random_inputs(workload, 1)
    wanted = reference(workload, inputs)
    rows = [n for n, size in enumerate(space.column("copy_bytes")) if size]
    for row in stream(1, case).permutation(rows)[:5]:
        schedule = space.schedule(int(row))
        kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
        verify(kernel)
        copies = [s for s in walk_statements(kernel.body) if isinstance(s, CopyAsync)]
        assert {s.elements * s.target.dtype.bytes for s in copies} == {dict(schedule.knobs)["copy_bytes"]}
        np.testing.assert_array_equal(interpret(kernel, inputs)["Y"], wanted["Y"], str(schedule))


def test_no_row_shares_a_chunk_with_another_and_places_are_congruent() -> None:
    """Here the rows of the input run over two axes, so that their distances differ."""
    workload = _reversed("float16")
    problem = permute_of(workload)
    assert problem is not None
    (masked,) = problem.transposed_loads
    known, shared = input_rows(problem, masked), tile_rows(problem, masked, 64, 8)
    assert len(known.steps) > 1
    extents = [a.extent for a in problem.output_axes]
    strides = [flat_offset(masked.load).coefficient(a.name) for a in problem.output_axes]  # type: ignore[union-attr]
    period, end = prod(extents), -1
    for row in range(period):
        begins = [_number(r.begin(index(row), period), {}, 0) for r in (known, shared)]
        assert begins[0] == int(np.dot(np.unravel_index(row, extents), strides))
        assert (begins[0] - begins[1]) % 8 == 0
        assert begins[1] // 8 > end
        end = (begins[1] + 63) // 8
    assert begins[1] <= shared.most(period)


def test_columns_of_copied_tiles_spread_over_the_banks() -> None:
    workload = workload_of("transpose", shape=[8191, 8193], axes=[1, 0], dtype="float16")
    for tile_out in (64, 128):
        schedule = schedule_of(SKETCH, workload, tile_in=128, tile_out=tile_out, threads=512, copy_bytes=8)
        kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
        assert isinstance(kernel.body, Launch)
        reads = [x for x in loads_of(kernel.body) if isinstance(x, Load) and x.buffer.scope is MemoryScope.SHARED]
        assert _conflicts(reads[0].buffer, reads[0].indices, kernel.body.axes[1].var) == 1


@pytest.mark.parametrize("shape", [(8191, 8193), (33, 65, 129, 257)], ids=str)
def test_the_first_choice_for_odd_rows_copies_them_and_keeps_all_threads_resident(shape: tuple[int, ...]) -> None:
    axes = list(reversed(range(len(shape))))
    workload = workload_of("transpose", shape=list(shape), axes=axes, dtype="float16")
    first = default_schedule(workload, H200)
    assert dict(first.knobs)["copy_bytes"] != 0
    (resources,) = build_kernel(SKETCH.lower(workload, H200, first), H200).resources.values()
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
    assert resources.registers <= 32


def test_short_axes_are_joined_with_others() -> None:
    """Tiles cover neither 33 nor 257 elements well. What is contiguous on a side goes on with its next axis."""
    problem = permute_of(workload_of("transpose", shape=[33, 65, 129, 257], axes=[3, 2, 1, 0], dtype="float16"))
    assert problem is not None
    assert [a.extent for a in problem.output_axes] == [65, 33]
    assert [a.extent for a in problem.input_axes] == [129, 257]
    reversed_axes = workload_of("transpose", shape=[5, 7, 9, 37], axes=[3, 2, 1, 0], dtype="float16")
    assert assert_agrees(SKETCH, reversed_axes, 5, policy=SpacePolicy(prune=False)) == 5


def test_what_it_leaves_to_others() -> None:
    assert not SKETCH.matches(workload_of("transpose", shape=[8, 16, 32], axes=[1, 0, 2]), H200)
    assert not SKETCH.matches(workload_of("elementwise", shape=[64, 64], functions=["relu"]), H200)
    x = te.placeholder((64, 64, 64), "float32", "X")
    diagonal = te.compute((64, 64), lambda i, j: x[j, i, i], "Y")
    assert not SKETCH.matches(te.workload(diagonal), H200)


@pytest.mark.parametrize(
    ("knobs", "broken"),
    [
        ({"tile_in": 256, "tile_out": 256, "threads": 128}, "the registers of the threads hold a tile"),
        ({"vector_width": 4, "layout": "swizzle"}, ""),
    ],
)
def test_legal_is_what_can_be_built(knobs: dict[str, KnobValue], broken: str) -> None:
    """A setting that no rule of thumb likes is lowered; one that breaks a constraint is refused with its meaning."""
    known = schedule_of(SKETCH, TRANSPOSE, vector_width=8, threads=256, layout="pad", tile_in=64, tile_out=64)
    schedule = Schedule.of(SKETCH.name, SKETCH.version, {**dict(known.knobs), **knobs})
    assert SKETCH.space(TRANSPOSE, H200).row_of(schedule) is None
    if not broken:
        SKETCH.lower(TRANSPOSE, H200, schedule)
        return
    with pytest.raises(IllegalSchedule, match=broken):
        SKETCH.lower(TRANSPOSE, H200, schedule)


def test_adjacent_axes_are_moved_as_one() -> None:
    kernel = SKETCH.lower(IMAGES, H200, schedule_of(SKETCH, IMAGES, tile_in=64, tile_out=64))
    assert isinstance(kernel.body, Launch)
    assert kernel.body.blocks == (32 * (56 * 56 // 64) * (256 // 64), 1, 1)


@pytest.mark.parametrize("workload", [TRANSPOSE, IMAGES], ids=["transpose", "images"])
def test_spaces_are_small_and_every_setting_fits(workload: Workload) -> None:
    space = SKETCH.space(workload, H200)
    assert 50 <= len(space) <= 300
    assert (space.quantities["shared_bytes"] <= 227 * 1024).all()
    assert (space.quantities["bytes_in_flight"] > 0).all()


def _conflicts(tile: Buffer, indices: tuple[Expr, ...], thread: str) -> int:
    """The most words of one bank that a warp asks for at once, per cycle that its bytes need anyway."""
    lanes: list[set[int]] = []
    for t in range(32):
        names = frozenset().union(*map(free_variables, indices))
        values: Mapping[str, Expr] = {n: index(t if n == thread else 0) for n in names}
        words = set()
        for lane in range(max(i.lanes for i in indices)):
            place = sum(_number(i, values, lane) * stride for i, stride in zip(indices, tile.strides, strict=True))
            if tile.layout is not None and tile.layout.swizzle is not None:
                place = tile.layout.swizzle.offset(place)
            words.add(place * tile.dtype.bytes // 4)
        lanes.append(words)
    size = max(map(len, lanes))
    worst = 0
    for start in range(0, 32, 32 // size):  # lanes of 4, 8 or 16 bytes are served 32, 16 or 8 at a time
        banks = Counter(w % 32 for w in set().union(*lanes[start : start + 32 // size]))
        worst = max(worst, max(banks.values()))
    return worst


def _number(at: Expr, values: Mapping[str, Expr], lane: int) -> int:
    if isinstance(at, Ramp):
        return _number(at.base, values, lane) + at.stride * lane
    inner = at.children[0] if at.lanes > 1 else at
    result = simplify(substitute(inner, values), {})
    assert isinstance(result, Const)
    return int(result.value)


@pytest.mark.parametrize(
    ("knobs", "written", "read"),
    [
        ({"layout": "swizzle", "tile_in": 64, "tile_out": 64}, 2, 1),
        ({"layout": "swizzle", "tile_in": 128, "tile_out": 64}, 2, 1),
        ({"layout": "pad", "tile_in": 64, "tile_out": 64}, 4, 1),
    ],
)
def test_columns_spread_over_the_banks(knobs: dict[str, KnobValue], written: int, read: int) -> None:
    schedule = schedule_of(SKETCH, TRANSPOSE, vector_width=8, threads=256, **knobs)
    kernel = finish(SKETCH.lower(TRANSPOSE, H200, schedule), H200)
    assert isinstance(kernel.body, Launch)
    thread = kernel.body.axes[1].var
    stores = [s for s in stores_of(kernel.body) if s.buffer.scope is MemoryScope.SHARED]
    loads = [x for x in loads_of(kernel.body) if isinstance(x, Load) and x.buffer.scope is MemoryScope.SHARED]
    assert _conflicts(stores[0].buffer, stores[0].indices, thread) <= written
    assert _conflicts(loads[0].buffer, loads[0].indices, thread) == read


@pytest.mark.parametrize("layout", ["pad", "swizzle"])
@pytest.mark.parametrize("workload", [TRANSPOSE, IMAGES], ids=["transpose", "images"])
def test_compiled_kernels_keep_to_registers(workload: Workload, layout: str) -> None:
    resources = compiled(SKETCH, workload, vector_width=8, threads=256, layout=layout, tile_in=64, tile_out=64)
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
    assert resources.registers <= 64
