"""The CPU loop sketch: what it groups, which knobs it offers, and the kernels of two schedules as golden files."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.golden import check_golden
from tests.schedule.agreement import assert_computes
from tilewright.codegen.passes.pipeline import run_passes
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Target
from tilewright.ir.buffer import MemoryScope
from tilewright.ir.expr import Expr, Load, walk
from tilewright.ir.linear_form import flat_form
from tilewright.ir.stmt import Allocate, For, LoopKind, expressions, walk_statements
from tilewright.ir.text import kernel_text
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import Module, load_module
from tilewright.schedule.cpu.loops.fusion import fusion_plan, is_contraction, paddings
from tilewright.schedule.cpu.loops.sketch import CPU_LOOPS
from tilewright.schedule.cpu.loops.tiles import COLUMNS, REDUCTION, tiles_of
from tilewright.schedule.cpu.shared_knobs import NON_TEMPORAL
from tilewright.schedule.defaults import default_schedule
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

AVX512 = Target("llvm", "x86-64", ("avx2", "avx512f", "fma"), threads=2, vector_bytes=64)
AVX2 = Target("llvm", "x86-64", ("avx2", "fma"), threads=8, vector_bytes=32)
SSE = Target("llvm", "x86-64", (), threads=1, vector_bytes=16)

MATMUL: dict[str, Any] = {"m": 50, "n": 40, "k": 24}
CONV: dict[str, Any] = {
    "batch": 1, "channels": 64, "height": 56, "width": 56, "filters": 64, "kernel_h": 3, "kernel_w": 3, "padding": 1,
}  # fmt: skip


def _workload(operator: str, parameters: dict[str, Any]) -> Workload:
    return OPERATORS[operator].workload(parameters)


def _schedule(**knobs: KnobValue) -> Schedule:
    return Schedule.of(CPU_LOOPS.name, CPU_LOOPS.version, knobs)


GOLDEN = {
    "matmul": (
        _workload("matmul", MATMUL),
        _schedule(
            lanes=16, vectors=2, rows=6, row_tiles=4, column_tiles=1, order="rows_inside", unroll=2, pack="operand_1"
        ),
    ),
    "softmax": (_workload("softmax", {"rows": 12, "columns": 100}), _schedule(lanes=16, vectors=2, rows=4)),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_lowered_kernels_are_as_written_down(name: str) -> None:
    workload, schedule = GOLDEN[name]
    lowered = CPU_LOOPS.lower(workload, AVX512, schedule)
    check_golden(f"schedule/golden/cpu_loops_{name}.txt", kernel_text(lowered))
    check_golden(f"codegen/golden/cpu_loops_{name}_final.txt", kernel_text(run_passes(lowered)[-1][1]))


@pytest.mark.parametrize(
    "operator, parameters, kinds",
    [
        ("matmul", MATMUL, ["tile"]),
        ("linear", {"rows": 64, "inputs": 64, "outputs": 64, "activation": "relu"}, ["tile"]),
        ("softmax", {"rows": 64, "columns": 128}, ["row"]),
        ("layer_norm", {"rows": 64, "columns": 128}, ["row"]),
        ("conv2d", CONV, ["tile", "tile"]),
        ("elementwise", {"shape": [64, 64], "functions": ["relu", "mul2", "add1", "sigmoid"]}, ["tile"]),
        ("reduce", {"shape": [64, 64], "axes": [0, 1]}, ["scalar"]),
    ],
)
def test_stages_are_grouped(operator: str, parameters: dict[str, Any], kinds: list[str]) -> None:
    found = fusion_plan(_workload(operator, parameters), inline_paddings=False, threads=2)
    assert [g.kind for g in found.groups] == kinds
    assert found.workload.outputs == _workload(operator, parameters).outputs


def test_a_product_with_row_statistics_keeps_its_tiles() -> None:
    """The product is tiled alone; what needs whole rows of it comes afterwards."""
    x, w = te.placeholder((64, 32), name="X"), te.placeholder((32, 48), name="W")
    k, j = te.reduce_axis(32, "k"), te.reduce_axis(48, "j")
    product = te.compute((64, 48), lambda i, n: te.sum(x[i, k] * w[k, n], axis=k), "P")
    top = te.compute((64,), lambda i: te.max(product[i, j], axis=j), "top")
    y = te.compute((64, 48), lambda i, n: te.exp(product[i, n] - top[i]), "Y")
    found = fusion_plan(te.workload(y), inline_paddings=False, threads=2)
    assert [g.kind for g in found.groups] == ["tile", "row"]
    assert is_contraction(found.groups[0].members[0])


def test_stages_that_index_dimensions_of_one_element_by_zero_are_fused() -> None:
    """Graphs write index 0 where the batch is 1."""
    x, w, b = (te.placeholder(shape, name=n) for n, shape in (("X", (1, 9, 40)), ("W", (3, 40)), ("B", (40,))))
    s = te.reduce_axis(3, "s")
    total = te.compute((1, 7, 40), lambda n, i, c: te.sum(x[n, i + s, c] * w[s, c], axis=s), "T")
    y = te.compute((1, 7, 40), lambda n, i, c: te.maximum(total[0, i, c] + b[c], 0.0), "Y")
    workload = te.workload(y)
    (group,) = fusion_plan(workload, inline_paddings=False, threads=2).groups
    assert (group.kind, [m.name for m in group.members], group.root.name) == ("tile", ["T"], "Y")
    assert_computes(
        CPU_LOOPS.lower(workload, host_target("llvm"), default_schedule(workload, host_target("llvm"))), workload
    )


def test_padding_is_stored_or_inlined() -> None:
    workload = _workload("conv2d", CONV)
    assert len(paddings(workload)) == 1
    stored = fusion_plan(workload, inline_paddings=False, threads=2)
    inlined = fusion_plan(workload, inline_paddings=True, threads=2)
    assert len(stored.groups) == 2 and len(inlined.groups) == 1
    assert stored.main.root.name == inlined.main.root.name


@pytest.mark.parametrize("images, channels", [(1, 24), (4, 24)])
def test_windows_of_small_images_with_channels_last_have_tiles(images: int, channels: int) -> None:
    """Their padding shares the axis of images with them: rows of that are few, or have vectors of one element."""
    x, w = te.placeholder((images, 5, 5, channels, 1), name="X"), te.placeholder((3, 3, channels, 1), name="W")

    def bordered(n: Expr, i: Expr, j: Expr, c: Expr, o: Expr) -> Expr:
        return te.select(te.all_of(i >= 1, i < 6, j >= 1, j < 6), x[n, i - 1, j - 1, c, o], 0.0)

    padded = te.compute((images, 7, 7, channels, 1), bordered, "padded")
    u, v = te.reduce_axis(3, "u"), te.reduce_axis(3, "v")
    y = te.compute(
        (images, 5, 5, channels, 1),
        lambda n, i, j, c, o: te.sum(padded[n, i + u, j + v, c, o] * w[u, v, c, o], axis=(u, v)),
        "Y",
    )
    workload = te.workload(y)
    assert [g.kind for g in fusion_plan(workload, inline_paddings=False, threads=2).groups] == ["tile", "tile"]
    schedule = default_schedule(workload, AVX512)
    assert dict(schedule.knobs)["lanes"] == 16
    assert_computes(CPU_LOOPS.lower(workload, AVX512, schedule), workload)


@pytest.mark.parametrize(
    "parameters, modes",
    [(MATMUL, (COLUMNS,)), ({**MATMUL, "transpose_b": True}, (REDUCTION, COLUMNS))],
)
def test_vectors_lie_where_memory_is_contiguous(parameters: dict[str, Any], modes: tuple[str, ...]) -> None:
    tiles = tiles_of(fusion_plan(_workload("matmul", parameters), inline_paddings=False, threads=2).main)
    assert tiles.modes == modes and (tiles.column, tiles.row, tiles.plane) == (1, 0, None)


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_register_tiles_fit_the_registers(target: Target, dtype: str) -> None:
    space = CPU_LOOPS.space(_workload("matmul", {"m": 256, "n": 256, "k": 256, "dtype": dtype}), target)
    registers = 32 if target is AVX512 else 16
    assert 1 < space.quantities["accumulators"].max() <= registers - 2
    widest = target.vector_bytes // (4 if dtype == "float32" else 8)
    assert space.column("lanes").max() == widest
    assert space.quantities["tasks"].min() >= target.threads
    assert space.quantities["packed_bytes"].max() <= 512 * 1024


def test_knob_names_and_values_do_not_depend_on_the_names_in_the_workload() -> None:
    def product(a: str, b: str, axis: str) -> Workload:
        x, w = te.placeholder((64, 32), name=a), te.placeholder((32, 48), name=b)
        k = te.reduce_axis(32, axis)
        return te.workload(te.compute((64, 48), lambda i, n: te.sum(x[i, k] * w[k, n], axis=k), "P" + a))

    one = CPU_LOOPS.space(product("A", "B", "k"), AVX512)
    other = CPU_LOOPS.space(product("Zebra", "Yak", "rho"), AVX512)
    assert [(k.name, k.values) for k in one.knobs] == [(k.name, k.values) for k in other.knobs]
    assert np.array_equal(one.codes, other.codes)


def test_axes_and_tensors_may_have_the_names_that_the_sketch_would_give() -> None:
    x = te.placeholder((40, 40), name="task")
    k = te.reduce_axis(40, "row_tile")
    y = te.compute((40, 40), lambda i, j: te.sum(x[i, k] * x[k, j], axis=k), "i_block")
    workload = te.workload(y)
    space = CPU_LOOPS.space(workload, AVX512)
    assert_computes(CPU_LOOPS.lower(workload, AVX512, space.schedule(len(space) // 2)), workload)


def test_settings_that_do_not_fit_together_are_refused() -> None:
    knobs: dict[str, KnobValue] = dict(GOLDEN["matmul"][1].knobs)
    with pytest.raises(IllegalSchedule, match="is not legal"):
        CPU_LOOPS.lower(GOLDEN["matmul"][0], AVX512, _schedule(**{**knobs, "rows": 16, "vectors": 3}))


def test_accumulators_are_registers_and_rows_are_local() -> None:
    for name, scope in (("matmul", MemoryScope.REGISTER), ("softmax", MemoryScope.LOCAL)):
        kernel = CPU_LOOPS.lower(GOLDEN[name][0], AVX512, GOLDEN[name][1])
        scopes = {s.buffer.scope for s in walk_statements(kernel.body) if isinstance(s, Allocate)}
        assert scope in scopes


def test_little_work_stays_on_one_thread() -> None:
    workload = _workload("matmul", {"m": 4, "n": 4, "k": 4})
    kernel = CPU_LOOPS.lower(workload, AVX512, CPU_LOOPS.space(workload, AVX512).schedule(0))
    assert not any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s in walk_statements(kernel.body))


@pytest.mark.parametrize("rows", [4, 256])
def test_rows_run_in_parallel_however_their_columns_are_cut(rows: int) -> None:
    """Groups of one channel: of rows joined from two dimensions, which tasks cut anywhere, and columns that vectors do
    not divide."""
    workload = _workload("group_norm", {"batch": 67, "channels": 130, "pixels": 130, "groups": 130, "dtype": "float64"})
    space = CPU_LOOPS.space(workload, AVX512)
    knobs = {**dict(space.schedule(0).knobs), "lanes": 8, "vectors": 5, "rows": rows}
    kernel = CPU_LOOPS.lower(workload, AVX512, _schedule(**knobs))
    assert any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s in walk_statements(kernel.body))


def test_other_targets_are_not_matched() -> None:
    assert not CPU_LOOPS.matches(_workload("matmul", MATMUL), Target("cuda", "sm_90a"))


@pytest.mark.parametrize("offset", [0, 16], ids=["aligned", "not aligned"])
def test_large_outputs_may_go_past_the_caches(offset: int) -> None:
    workload = _workload("softmax", {"rows": 4100, "columns": 512})
    space = CPU_LOOPS.space(workload, host_target("llvm"))
    past = [n for n, s in enumerate(space.column("store").tolist()) if s == NON_TEMPORAL]
    assert 0 < len(past) < len(space)
    inputs = random_inputs(workload, 1)
    wanted, limits = reference(workload, inputs)["Y"], tolerance(workload)["Y"]
    for n in past[:: len(past) // 3]:
        module = load_module(workload, space.schedule(n))
        assert isinstance(module, Module)
        block = np.zeros(4 * wanted.size + 128, np.uint8)
        begin = -block.ctypes.data % 64 + offset
        out = block[begin : begin + 4 * wanted.size].view(np.float32).reshape(wanted.shape)
        module(inputs["X"], out=(out,))
        np.testing.assert_allclose(out, wanted, limits[1], limits[0])
    small = _workload("softmax", {"rows": 64, "columns": 512})
    assert "store" not in {k.name for k in CPU_LOOPS.space(small, host_target("llvm")).knobs}


def test_accumulators_fit_the_registers_where_padding_is_inline() -> None:
    """Rows of a task become rows of a register tile there: not of any number."""
    image = {"batch": 1, "channels": 128, "filters": 128, "groups": 128, "height": 56, "width": 56}
    workload = OPERATORS["conv2d"].workload({**image, "kernel_h": 3, "kernel_w": 3, "padding": 1})
    space = CPU_LOOPS.space(workload, AVX512)
    inline = np.asarray(space.column("padding")) == "inline"
    tiles = np.asarray(space.column("rows"), int) * np.asarray(space.column("vectors"), int)
    assert tiles[inline].max() == 32 and tiles[~inline].max() > 32
    assert len(inline) // 4 < inline.sum() < len(inline) // 2
    schedule = space.schedule(int(np.argmax(inline)))
    too_many = replace(schedule, knobs=tuple((n, 128 if n == "rows" else v) for n, v in schedule.knobs))
    with pytest.raises(IllegalSchedule, match="inlined padding"):
        CPU_LOOPS.lower(workload, AVX512, too_many)


def test_windows_are_tuned_and_not_what_pads_them() -> None:
    """With stride 2, storing the padded images counts more operations than the windows do."""
    images = {"batch": 1, "channels": 96, "height": 112, "width": 112, "filters": 96, "groups": 96, "padding": 1}
    window = {"kernel_h": 3, "kernel_w": 3, "stride": 2, "layout": "NHWC"}
    workload = OPERATORS["conv2d"].workload({**images, **window})
    assert {"rows", "planes", "unroll"} <= {k.name for k in CPU_LOOPS.space(workload, AVX2).knobs}


@pytest.mark.parametrize("stride", [1, 2])
def test_promising_tiles_of_a_depthwise_convolution_load_a_window_once_and_write_whole_rows(stride: int) -> None:
    """What a register tile sees and its sums fit the registers, and tasks that follow one another are neighbours in a
    row: threads with equal shares of consecutive kernels read what they wrote."""
    images = {"batch": 1, "channels": 96, "height": 28, "width": 28, "filters": 96, "groups": 96, "padding": 1}
    window = {"kernel_h": 3, "kernel_w": 3, "stride": stride, "layout": "NHWC"}
    space = CPU_LOOPS.space(OPERATORS["conv2d"].workload({**images, **window}), AVX512)
    names = ("rows", "planes", "vectors", "lanes")
    rows, planes, vectors, lanes = (np.asarray(space.column(name), int) for name in names)
    seen = ((rows - 1) * stride + 3) * ((planes - 1) * stride + 3) * vectors
    assert len(space) and (seen + rows * planes * vectors <= 32).all()
    assert (space.quantities["inner_steps"] == 1).all()
    assert (np.asarray(space.column("row_tiles"), int) == 1).all()
    assert (np.asarray(space.column("column_tiles"), int) * vectors * lanes >= 96).all()


@pytest.mark.parametrize("target", [AVX2, SSE])
def test_a_window_that_fits_no_registers_has_promising_tiles(target: Target) -> None:
    images = {"batch": 1, "channels": 96, "height": 28, "width": 28, "filters": 96, "groups": 96, "padding": 2}
    window = {"kernel_h": 5, "kernel_w": 5, "layout": "NHWC"}
    space = CPU_LOOPS.space(OPERATORS["conv2d"].workload({**images, **window}), target)
    assert ((space.quantities["inner_steps"] == 1) & (np.asarray(space.column("row_tiles"), int) == 1)).any()


FORCES = """P: float32[40, 3]
M: float32[40]
F[i, c < 3] = sum over j < 40 of M[j] * (P[j, c] - P[i, c])
    / ((P[j, 0] - P[i, 0]) * (P[j, 0] - P[i, 0]) + (P[j, 1] - P[i, 1]) * (P[j, 1] - P[i, 1]) + 0.01)""".replace(
    "\n   ", ""
)


FEW_FILTERS = (
    "X: float32[2, 9, 9, 40]\nW: float32[3, 3, 40, 3]\n"
    "Y[n, y < 7, x < 7, f] = sum over c < 40, r < 3, s < 3 of X[n, y + r, x + s, c] * W[r, s, c, f]"
)
"""Filters lie three elements apart along the channels: few loads of them are shuffled."""


@pytest.mark.parametrize(("text", "rows"), [(FORCES, 8), (FEW_FILTERS, 7)])
def test_vectors_of_few_columns_may_lie_along_the_reduction(text: str, rows: int) -> None:
    """The vectors of before, of a few columns, come first."""
    workload = parse_workload(text)
    group = fusion_plan(workload, inline_paddings=False, threads=2).main
    assert tiles_of(group).modes == (COLUMNS, REDUCTION)
    space = CPU_LOOPS.space(workload, AVX512)
    lanes = next(k for k in space.knobs if k.name == "lanes")
    assert lanes.values == (16, 8, 4, 2)
    seconds = space.prior_seconds
    assert seconds is not None
    best = dict(space.schedule(int(seconds.argmin())).knobs)
    assert best["vectorise"] == REDUCTION and best["lanes"] == 16
    for vectorise in (COLUMNS, REDUCTION):
        schedule = _schedule(
            **{**best, "vectorise": vectorise, "vectors": 1, "column_tiles": 1, "order": "rows_inside", "unroll": 1}
        )
        assert_computes(CPU_LOOPS.lower(workload, AVX512, schedule), workload)
    CPU_LOOPS.lower(workload, AVX512, _schedule(lanes=4, vectors=1, rows=rows, row_tiles=1, column_tiles=1))


def test_a_prior_counts_what_all_columns_share_once() -> None:
    """What a sum makes of a row or of a column is computed once in a register tile, and what it makes of neither, once
    for the sum."""
    plain = "A: float32[256, 64]\nB: float32[256, 64]\nC[i < 64, j < 64] = sum over n < 256 of "
    seconds = []
    for term in ("A[n, i] * B[n, j]", "exp(A[n, i]) * exp(B[n, j])", "exp(A[n, i] * B[n, j])"):
        space = CPU_LOOPS.space(parse_workload(plain + term), AVX512, limit=1000, policy=SpacePolicy(prune=False))
        found = space.prior_seconds
        assert found is not None
        seconds.append(float(found.min()))
    assert seconds[0] < seconds[1] < 0.6 * seconds[2]


@pytest.mark.parametrize(
    "text",
    [
        "X: float32[30, 12, 40]\nS[j] = sum over k < 40, i < 30 of X[i, j, k]",
        "X: float32[9, 20, 5, 10]\nS[b, g] = max over c < 10, p < 20 of X[b, p, g, c]",
        "X: float32[30, 40]\nS[] = sum over k < 40, i < 30 of X[i, k]",
    ],
)
def test_vectors_lie_along_the_contiguous_terms_whatever_their_order(text: str) -> None:
    workload = parse_workload(text)
    space = CPU_LOOPS.space(workload, AVX512)
    seconds = space.prior_seconds
    assert seconds is not None
    for row in (int(seconds.argmin()), 0):
        assert_computes(CPU_LOOPS.lower(workload, AVX512, space.schedule(row)), workload)
    final = run_passes(CPU_LOOPS.lower(workload, AVX512, space.schedule(int(seconds.argmin()))))[-1][1]
    loads = {e for s in walk_statements(final.body) for root in expressions(s) for e in walk(root)}
    reads = [e for e in loads if isinstance(e, Load) and e.buffer.name == "X"]
    assert reads and {flat_form(e.indices, e.buffer.strides).stride for e in reads if e.lanes > 1} == {1}


def test_a_prior_counts_every_group() -> None:
    """Two products, of which the first one is the larger, are estimated to take longer than the first one alone."""
    first = "A: float32[256, 256]\nB: float32[256, 256]\nC[i, j] = sum over k < 256 of A[i, k] * B[k, j]"
    second = "\nE: float32[256, 128]\nD[i, l] = sum over j < 256 of C[i, j] * E[j, l]"
    one, both = (CPU_LOOPS.space(parse_workload(t), AVX512, limit=1000) for t in (first, first + second))
    assert one.prior_seconds is not None and both.prior_seconds is not None
    assert both.prior_seconds.min() > 1.25 * one.prior_seconds.min()
