"""Transposing copies: what they take, what they compute, and how they spread over the banks of shared memory."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from tests.schedule.gpu.tiles import (
    H200,
    assert_agrees,
    compiled,
    legal_schedule_of,
    schedule_of,
    workload_of,
)
from tilewright.codegen.lowering import finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import Const, Expr, Load, Ramp, index
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import free_variables, loads_of, stores_of, substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.stmt import Launch
from tilewright.ir.verify import verify
from tilewright.schedule.gpu.permute.space import CUDA_PERMUTE as SKETCH
from tilewright.schedule.problems.permute import permute_of
from tilewright.te import build as te
from tilewright.te.data import random_inputs
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
    assert assert_agrees(SKETCH, CASES[case]()) >= 2


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
    assert set(SKETCH.space(TRANSPOSE, H200).column("store_alignment")) == {0}


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
    assert tile.layout is not None
    lanes: list[set[int]] = []
    for t in range(32):
        names = frozenset().union(*map(free_variables, indices))
        values: Mapping[str, Expr] = {n: index(t if n == thread else 0) for n in names}
        words = set()
        for lane in range(max(i.lanes for i in indices)):
            place = sum(
                _number(i, values, lane) * stride for i, stride in zip(indices, tile.layout.strides, strict=True)
            )
            if tile.layout.swizzle is not None:
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
