"""Kernels with dynamic rows and lengths in every form that their classes have, on a device with few multiprocessors, so
that CTAs take several tiles; and what is estimated of them."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from tests.sketch_agreement import agree
from tilewright.codegen.lowering import finish, lower
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.dynamic import kernel_at_extent
from tilewright.ir.interpret import interpret
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.dynamic import at_extent, at_representative, with_dynamic
from tilewright.te.operators import OPERATORS
from tilewright.te.operators.attention import attention_of_lengths
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

SMALL = Target("cuda", "sm_90a", threads=4, vector_bytes=16)
ROWS = {"vector_width": 8, "threads_per_row": 64, "rows_per_cta": 1}
TILE = {"consumer_warpgroups": 1, "atoms_m": 1, "mma_n": 64, "epilogue_stages": 1}
FORMS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    "rows in a circular buffer": (
        "cuda_rowwise",
        "softmax",
        {"rows": 30, "columns": 1031, "dtype": "float16"},
        {**ROWS, "row_storage": "circular_buffer"},
        (1, 5, 30),
    ),
    "rows of a cluster": (
        "cuda_rowwise",
        "softmax",
        {"rows": 9, "columns": 40000, "dtype": "float16"},
        {**ROWS, "threads_per_row": 512, "cluster_size": 8},
        (2,),
    ),
    "several rows of a CTA": (
        "cuda_rowwise",
        "rms_norm",
        {"rows": 50, "columns": 512, "dtype": "float16"},
        {**ROWS, "rows_per_cta": 4},
        (3, 8),
    ),
    "few rows have more threads each": (
        "cuda_rowwise",
        "softmax",
        {"rows": 40, "columns": 520, "dtype": "float16"},
        {**ROWS, "threads_per_row": 16, "rows_per_cta": 2},
        (3, 8, 9, 39),
    ),
    "persistent maps": (
        "cuda_pointwise",
        "elementwise",
        {"shape": [3000, 8], "functions": ["relu"], "dtype": "float16"},
        {"vector_width": 1, "unroll": 1, "threads": 128, "persistent": 1},
        (100, 1501, 3000),
    ),
    "persistent tiles": ("cuda_gemm", "linear", {"rows": 300}, {**TILE, "group_m": 4}, (1, 300)),
    "ping-pong": ("cuda_gemm", "linear", {"rows": 300}, {**TILE, "consumer_warpgroups": 2, "ping_pong": 1}, (190,)),
    "clusters": ("cuda_gemm", "linear", {"rows": 300}, {**TILE, "cluster_m": 2, "epilogue_stages": 0}, (129,)),
    "split-K": (
        "cuda_gemm",
        "linear",
        {"rows": 128},
        {**TILE, "split_k": 2, "epilogue_stages": 0, "mma_n": 160},
        (3, 90),
    ),
    "tensor memory, ping-pong": (
        "cuda_gemm_tcgen05",
        "linear",
        {"rows": 300},
        {**TILE, "consumer_warpgroups": 2, "ping_pong": 1},
        (1, 190),
    ),
    "tensor memory, clusters": (
        "cuda_gemm_tcgen05",
        "linear",
        {"rows": 600},
        {**TILE, "atoms_m": 2, "cluster_m": 2, "epilogue_stages": 2},
        (129, 600),
    ),
}


def _target(sketch: str) -> Target:
    return replace(SMALL, arch="sm_100a") if sketch.endswith("tcgen05") else SMALL


def _workload(operator: str, parameters: dict[str, Any], representative: int = 0) -> Workload:
    if operator == "linear":
        parameters = {"inputs": 128, "outputs": 136, "bias": True, "residual": True, "dtype": "float16", **parameters}
    return with_dynamic(OPERATORS[operator].workload(parameters), representative=representative)


@pytest.mark.parametrize("form", FORMS)
def test_all_extents_agree_with_the_reference(form: str) -> None:
    sketch, operator, parameters, knobs, extents = FORMS[form]
    workload = _workload(operator, parameters)
    target = _target(sketch)
    kernel = finish(lower(workload, target, Schedule.of(sketch, SKETCHES[sketch].version, knobs)), target)
    for extent in extents:
        static = at_extent(workload, extent)
        inputs = random_inputs(static, 1)
        agree(f"{extent}", interpret(kernel, inputs), reference(static, inputs), tolerance(static))


SEQUENCE_FIRST = {"consumer_warpgroups": 1, "tile_kv": 64}


def test_few_rows_take_a_launch_of_their_own() -> None:
    sketch, operator, parameters, knobs, _ = FORMS["few rows have more threads each"]
    schedule = Schedule.of(sketch, SKETCHES[sketch].version, knobs)

    def launched(representative: int, rows: int) -> list[tuple[str, int]]:
        kernel = lower(_workload(operator, parameters, representative), SMALL, schedule)
        return [(launch.name, launch.threads) for launch in kernel_at_extent(kernel, rows).launches]

    assert launched(40, 8) == [("few_rows", 32)] and launched(40, 9) == [("kernel", 32)]
    assert launched(8, 8) == [("kernel", 32)]  # what is measured on few rows suits them


GROUPED = {"heads": 1, "queries": 1, "keys": 300, "depth": 32, "causal": True}


def _cached(queries: int, keys: int) -> Workload:
    """Attention to a cache that grows along its first dimension, with a bias of both lengths."""
    q, k, v = (te.placeholder((n, 2, 32), "float16", x) for n, x in ((queries, "Q"), (keys, "K"), (keys, "V")))
    bias = te.placeholder((2, queries, keys), "float16", "B")
    m_extent = te.extent("queries_extent", {q: 0, bias: 1}, queries)
    n_extent = te.extent("keys_extent", {k: 0, v: 0, bias: 2}, keys)
    r, t, u, x = (te.reduce_axis(n, name) for n, name in ((32, "r"), (keys, "t"), (keys, "u"), (keys, "x")))
    wide = "float32"
    product = te.compute(
        (queries, 2, keys), lambda i, h, j: te.sum(te.cast(q[i, h, r], wide) * te.cast(k[j, h, r], wide), r)
    )
    scores = te.compute(
        product.shape,
        lambda i, h, j: te.select(
            j <= i + (n_extent - m_extent), product[i, h, j] + te.cast(bias[h, i, j], wide), te.constant(-inf, wide)
        ),
    )
    top = te.compute((queries, 2), lambda i, h: te.max(scores[i, h, t], t))
    power = te.compute(scores.shape, lambda i, h, j: te.exp(scores[i, h, j] - top[i, h]))
    total = te.compute((queries, 2), lambda i, h: te.sum(power[i, h, u], u))
    mixed = te.compute(
        q.shape,
        lambda i, h, d: te.sum(te.cast(te.cast(power[i, h, x], "float16"), wide) * te.cast(v[x, h, d], wide), x),
    )
    y = te.compute(q.shape, lambda i, h, d: te.cast(mixed[i, h, d] / total[i, h], "float16"), "Y")
    return te.workload(y, dynamic=[m_extent, n_extent])


LENGTHS: dict[str, tuple[Workload, dict[str, Any], tuple[tuple[int, ...], ...]]] = {
    "persistent tiles, the longest first": (
        attention_of_lengths(
            {"heads": 3, "queries": 200, "keys": 300, "depth": 32, "causal": True, "dtype": "float16"}, 200, 300
        ),
        {"consumer_warpgroups": 1, "tile_kv": 64, "persistent": 1, "q_stages": 2},
        ((1, 1), (65, 130), (200, 200)),
    ),
    "keys shared by CTAs": (_cached(5, 300), {**SEQUENCE_FIRST, "split_kv": 4}, ((1, 1), (5, 129), (3, 300))),
    "fewer sharers of more queries": (
        attention_of_lengths({"heads": 1, "queries": 130, "keys": 300, "depth": 32, "dtype": "float16"}, 100, 300),
        {**SEQUENCE_FIRST, "split_kv": 4, "overlap": 0},
        ((66, 300), (130, 100)),
    ),
    "a sequence": (
        attention_of_lengths(
            {"heads": 1, "queries": 200, "keys": 200, "depth": 32, "causal": True, "dtype": "bfloat16"}, sequence=130
        ),
        {"consumer_warpgroups": 2, "tile_kv": 64, "ping_pong": 1},
        ((7,), (140,)),
    ),
    "keys alone": (
        attention_of_lengths({**GROUPED, "queries_per_key": 30, "dtype": "bfloat16"}, keys=300),
        {**SEQUENCE_FIRST, "tile_kv": 80, "split_kv": 3},
        ((81,), (300,)),
    ),
}


@pytest.mark.parametrize("form", LENGTHS)
def test_all_lengths_agree_with_the_reference(form: str) -> None:
    workload, knobs, calls = LENGTHS[form]
    assert [s.name for s in sketches_for(workload, SMALL)] == ["cuda_attention"]
    schedule = Schedule.of("cuda_attention", SKETCHES["cuda_attention"].version, knobs)
    kernel = finish(lower(workload, SMALL, schedule), SMALL)
    for extents in calls:
        static = at_extent(workload, *extents)
        inputs = random_inputs(static, 1)
        agree(f"{extents}", interpret(kernel, inputs), reference(static, inputs), tolerance(static))


def test_lengths_are_no_rows() -> None:
    heads = frozenset("QKV")
    operator = OPERATORS["attention"].workload({"heads": 3, "queries": 8, "keys": 9, "depth": 32, "dtype": "float16"})
    assert sketches_for(with_dynamic(operator, heads), SMALL) == ()
    columns = te.placeholder((64, 30), name="X")
    n = te.extent("columns_extent", {columns: 1}, 30)
    k = te.reduce_axis(30, "k")
    sums = te.compute((64,), lambda i: te.sum(columns[i, k], k), "Y")
    assert sketches_for(te.workload(sums, dynamic=[n]), SMALL) == ()


def _sequences(most: int, length: int) -> tuple[Workload, Workload]:
    """(a linear layer, RMS-normed rows) of up to ``most`` sequences."""
    x, b = te.placeholder((most, length, 128), "float16", "X"), te.placeholder((136, 128), "float16", "B")
    k, j = te.reduce_axis(128, "k"), te.reduce_axis(128, "j")
    wide = te.compute(
        (most, length, 136), lambda n, i, o: te.sum(te.cast(x[n, i, k], "float32") * te.cast(b[o, k], "float32"), k)
    )
    y = te.compute(wide.shape, lambda n, i, o: te.cast(wide[n, i, o], "float16"), "Y")
    squares = te.compute(
        (most, length), lambda n, i: te.sum(te.cast(x[n, i, j], "float32") * te.cast(x[n, i, j], "float32"), j)
    )
    z = te.compute(
        x.shape, lambda n, i, o: te.cast(te.cast(x[n, i, o], "float32") * te.rsqrt(squares[n, i]), "float16")
    )
    return te.workload(y), te.workload(z)


@pytest.mark.parametrize("number", [0, 1])
def test_sequences_of_a_batch_are_rows(number: int) -> None:
    workload = with_dynamic(_sequences(7, 50)[number])
    (sketch,) = sketches_for(workload, SMALL)
    knobs = (TILE, {"vector_width": 8, "threads_per_row": 16, "rows_per_cta": 8})[number]
    kernel = finish(lower(workload, SMALL, Schedule.of(sketch.name, sketch.version, knobs)), SMALL)
    for extent in (1, 5):
        static = at_extent(workload, extent)
        inputs = random_inputs(static, 1)
        agree(f"{extent}", interpret(kernel, inputs), reference(static, inputs), tolerance(static))


def test_settings_are_estimated_at_the_representative_extent() -> None:
    dynamic = _workload("softmax", {"rows": 8192, "columns": 1024}, representative=100)
    sketch, target = SKETCHES["cuda_rowwise"], Target("cuda", "sm_90a", threads=132, vector_bytes=16)
    space, static = sketch.space(dynamic, target), sketch.space(at_representative(dynamic), target)
    assert np.array_equal(space.codes, static.codes)
    assert space.prior_seconds is not None and static.prior_seconds is not None
    np.testing.assert_array_equal(space.prior_seconds, static.prior_seconds)
    for name, column in static.quantities.items():
        np.testing.assert_array_equal(space.quantities[name], column)


def test_few_rows_are_left_to_the_sketch_that_takes_dynamic_ones() -> None:
    few = {"rows": 48, "inputs": 256, "outputs": 512, "bias": True, "dtype": "float16"}
    names = [s.name for s in sketches_for(_workload("linear", few), Target("cuda", "sm_90a", threads=132))]
    assert names == ["cuda_gemm"]


def test_stream_k_and_what_no_sketch_takes_are_refused() -> None:
    stream_k = Schedule.of("cuda_gemm", SKETCHES["cuda_gemm"].version, {**TILE, "stream_k": 1})
    with pytest.raises(IllegalSchedule, match="known at run time"):
        lower(_workload("linear", {"rows": 300}), SMALL, stream_k)
    batch = OPERATORS["batch_matmul"].workload({"batch": 3, "m": 200, "n": 264, "k": 136, "dtype": "float16"})
    inputs = frozenset(t.name for t in batch.inputs)
    assert sketches_for(with_dynamic(batch, inputs), SMALL) == ()
