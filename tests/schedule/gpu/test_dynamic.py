"""Kernels with dynamic rows in every form that their classes have, on a device with few multiprocessors, so that CTAs
take several tiles; and what is estimated of them."""

from typing import Any

import numpy as np
import pytest

from tests.sketch_agreement import agree
from tilewright.codegen.lowering import finish, lower
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.dynamic import at_extent, at_representative, with_dynamic
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

SMALL = Target("cuda", "sm_90a", threads=4, vector_bytes=16)
ROWS = {"vector": 8, "threads_per_row": 64, "rows_per_cta": 1}
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
}


def _workload(operator: str, parameters: dict[str, Any], representative: int = 0) -> Workload:
    if operator == "linear":
        parameters = {"inputs": 128, "outputs": 136, "bias": True, "residual": True, "dtype": "float16", **parameters}
    return with_dynamic(OPERATORS[operator].workload(parameters), representative=representative)


@pytest.mark.parametrize("form", FORMS)
def test_all_extents_agree_with_the_reference(form: str) -> None:
    sketch, operator, parameters, knobs, extents = FORMS[form]
    workload = _workload(operator, parameters)
    kernel = finish(lower(workload, SMALL, Schedule.of(sketch, SKETCHES[sketch].version, knobs)), SMALL)
    for extent in extents:
        static = at_extent(workload, extent)
        inputs = random_inputs(static, 1)
        agree(f"{extent}", interpret(kernel, inputs), reference(static, inputs), tolerance(static))


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
    knobs = (TILE, {"vector": 8, "threads_per_row": 16, "rows_per_cta": 8})[number]
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
