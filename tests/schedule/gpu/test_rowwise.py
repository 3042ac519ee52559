"""Row and column kernels at the sizes they are for: what the compiler makes of them, and what their spaces hold."""

from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, schedule_of, workload_of
from tilewright.codegen.cuda.emit.access import strided_offset, vector_accesses
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.policy import SpacePolicy
from tilewright.ir.buffer import MemoryScope
from tilewright.ir.rewrite import loads_of, stores_of
from tilewright.schedule.gpu.columnwise.space import CUDA_COLUMNWISE
from tilewright.schedule.gpu.rowwise.space import CUDA_ROWWISE
from tilewright.schedule.sketch import Sketch
from tilewright.te.workload import Workload

SOFTMAX = workload_of("softmax", rows=8192, columns=8192, dtype="float16")
LONG_SOFTMAX = workload_of("softmax", rows=1024, columns=65536, dtype="float16")
LONG_NORM = workload_of("layer_norm", rows=1024, columns=65536, dtype="float16")
ODD = workload_of("log_softmax", rows=4096, columns=50257, dtype="float16")
NORM = workload_of("layer_norm", rows=8192, columns=1024, dtype="float16")
ADDED = workload_of("add_rms_norm", rows=8192, columns=4096, dtype="float16")
ARGMAX = workload_of("reduce", shape=[8192, 8192], axes=[1], kind="argmax", dtype="float32")
COLUMNS = workload_of("reduce", shape=[8192, 8192], axes=[0], kind="sum", dtype="float32")
MEAN = workload_of("reduce", shape=[32, 56, 56, 256], axes=[0, 1, 2], kind="mean", dtype="float16")


ROWWISE: list[tuple[Workload, int, dict[str, Any]]] = [
    (SOFTMAX, 64, dict(threads_per_row=128, rows_per_cta=1, row_storage="registers")),
    (LONG_SOFTMAX, 64, dict(threads_per_row=1024, cluster_size=1, row_storage="circular_buffer")),
    (LONG_NORM, 128, dict(threads_per_row=256, cluster_size=4, row_storage="circular_buffer", broadcast_preload=1)),
    (LONG_NORM, 96, dict(threads_per_row=256, cluster_size=4, row_storage="registers", broadcast_preload=0)),
    (LONG_NORM, 128, dict(threads_per_row=512, cluster_size=2, prefetch_depth="two_rows", broadcast_preload=1)),
    (LONG_NORM, 128, dict(threads_per_row=512, cluster_size=1, row_storage="circular_buffer", broadcast_preload=3)),
    (ODD, 128, dict(threads_per_row=512, cluster_size=1, row_storage="circular_buffer")),
    (NORM, 48, dict(threads_per_row=64, rows_per_cta=2, broadcast_preload=0, row_storage="registers")),
    (ADDED, 72, dict(threads_per_row=128, rows_per_cta=1, broadcast_preload=0, row_storage="registers")),
    (ARGMAX, 48, dict(threads_per_row=256, cluster_size=1)),
]
COLUMNWISE: list[tuple[Workload, int, dict[str, Any]]] = [
    (COLUMNS, 48, dict(threads_x=32, threads_y=8, unroll=4, splits=8, combine="second_launch")),
    (COLUMNS, 64, dict(threads_x=64, threads_y=8, unroll=8, splits=8, combine="cluster")),
    (MEAN, 48, dict(threads_x=16, threads_y=32, unroll=4, splits=132, arrangement="striped")),
    (MEAN, 64, dict(threads_x=4, threads_y=128, unroll=8, combine="cluster")),
]


@pytest.mark.parametrize(
    ("sketch", "workload", "most_registers", "knobs"),
    [*((CUDA_ROWWISE, *case) for case in ROWWISE), *((CUDA_COLUMNWISE, *case) for case in COLUMNWISE)],
)
def test_the_compiler_keeps_everything_in_registers(
    sketch: Sketch, workload: Workload, most_registers: int, knobs: dict[str, Any]
) -> None:
    kernel = sketch.lower(workload, H200, schedule_of(sketch, workload, **knobs))
    for name, taken in build_kernel(kernel, H200).resources.items():
        assert taken.spill_bytes == 0 and taken.stack_bytes == 0, name
        assert taken.registers <= most_registers, name


@pytest.mark.parametrize("workload", [SOFTMAX, ODD, NORM, ADDED], ids=["softmax", "odd", "norm", "added"])
def test_rows_are_read_and_written_sixteen_bytes_at_a_time(workload: Workload) -> None:
    schedule = schedule_of(CUDA_ROWWISE, workload, rows_per_cta=1, row_storage="registers", cluster_size=1)
    final = finish(CUDA_ROWWISE.lower(workload, H200, schedule), H200)
    accesses = [(load.buffer, load.indices) for load in loads_of(final.body)]
    accesses += [(store.buffer, store.indices) for store in stores_of(final.body)]
    vectors = [a for a in accesses if a[0].scope is MemoryScope.GLOBAL and a[1][-1].lanes == 8]
    assert {b.name for b, _ in vectors} >= {b.name for b in (*final.inputs, *final.outputs)}
    for buffer, indices in vectors:
        found = strided_offset(indices, buffer.strides)
        assert found is not None and list(vector_accesses([(buffer, found.base)], 8)) == [(0, 16)], buffer.name


@pytest.mark.parametrize(
    ("workload", "few", "many"), [(SOFTMAX, 8, 40), (LONG_NORM, 20, 100), (ODD, 20, 100), (ARGMAX, 8, 40)]
)
def test_pruned_rowwise_spaces_are_small_and_fit(workload: Workload, few: int, many: int) -> None:
    space = CUDA_ROWWISE.space(workload, H200)
    assert few <= len(space) <= many
    assert (space.quantities["shared_bytes"] <= 227 * 1024).all()
    assert (space.quantities["registers_estimate"] * space.quantities["threads"] <= 65536).all()
    assert (space.quantities["idle_share"] <= 0.26).all()


def test_clusters_are_for_long_rows() -> None:
    short, long = CUDA_ROWWISE.space(NORM, H200), CUDA_ROWWISE.space(LONG_NORM, H200)
    assert set(short.column("cluster_size")) == {1}
    assert set(long.column("cluster_size")) >= {1, 2, 4, 8}
    without = CUDA_ROWWISE.space(LONG_NORM, type(H200)("cuda", "sm_80", threads=108, vector_bytes=16))
    assert set(without.column("cluster_size")) == {1}


def test_column_spaces_keep_the_device_busy() -> None:
    for workload in (COLUMNS, MEAN):
        space = CUDA_COLUMNWISE.space(workload, H200)
        assert 50 <= len(space) <= 400
        assert (space.quantities["blocks"] >= 64).all()
        assert (space.quantities["bytes_in_flight"] >= 32 * 1024).all()


FOUND_ON_AN_H200: list[tuple[Sketch, Workload, dict[str, Any]]] = [
    (CUDA_ROWWISE, SOFTMAX, dict(threads_per_row=512, row_storage="registers")),
    (CUDA_ROWWISE, LONG_SOFTMAX, dict(threads_per_row=512, row_storage="registers_and_shared", ctas_per_sm=2)),
    (CUDA_ROWWISE, LONG_NORM, dict(threads_per_row=128, cluster_size=8, ctas_per_sm=4, broadcast_preload=1)),
    (CUDA_ROWWISE, NORM, dict(threads_per_row=64, rows_per_cta=2, broadcast_preload=1)),
    (CUDA_ROWWISE, ADDED, dict(threads_per_row=512, broadcast_preload=1)),
    (CUDA_COLUMNWISE, COLUMNS, dict(threads_x=32, threads_y=32, unroll=8, splits=16, arrangement="striped")),
    (CUDA_COLUMNWISE, MEAN, dict(threads_x=8, threads_y=64, unroll=8, splits=66, arrangement="blocked")),
]


@pytest.mark.parametrize(("sketch", "workload", "knobs"), FOUND_ON_AN_H200)
def test_the_prior_likes_what_was_found_fastest(sketch: Sketch, workload: Workload, knobs: dict[str, Any]) -> None:
    """Settings from the tuned table of an H200: within a twentieth of the least estimate of all legal settings."""
    legal = sketch.space(workload, H200, policy=SpacePolicy(prune=False))
    assert legal.prior_seconds is not None and np.isfinite(legal.prior_seconds).all()
    (found,) = sketch.prior_seconds(workload, H200, [schedule_of(sketch, workload, **knobs)])
    assert legal.prior_seconds.min() <= found <= 1.05 * legal.prior_seconds.min()
    assert legal.prior_seconds.max() > 1.5 * found


def test_the_prior_knows_that_a_lone_cta_exposes_its_loads_and_its_writes() -> None:
    """An H200 takes 42 us for it."""
    few = workload_of("softmax", rows=16, columns=1048576, dtype="float16")
    (found,) = CUDA_ROWWISE.prior_seconds(
        few, H200, [schedule_of(CUDA_ROWWISE, few, threads_per_row=512, cluster_size=16)]
    )
    assert 36e-6 < found < 48e-6


def test_the_prior_follows_the_device() -> None:
    """Half the bytes a second take about twice as long."""
    schedule = schedule_of(CUDA_ROWWISE, SOFTMAX)
    fast, slow = (
        CUDA_ROWWISE.prior_seconds(SOFTMAX, H200, [schedule], {"copy_bytes_per_second": rate})[0]
        for rate in (4e12, 2e12)
    )
    assert 1.8 < slow / fast < 2
