"""Row and column kernels at the sizes they are for: what the compiler makes of them, and what their spaces hold."""

from typing import Any

import pytest

from tests.schedule.gpu.tiles import H200, schedule_of, workload_of
from tilewright.codegen.cuda.emit.access import strided_offset, vector_accesses
from tilewright.codegen.lowering import build_kernel, finish
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


@pytest.mark.parametrize(
    ("sketch", "workload", "knobs", "most_registers"),
    [
        (CUDA_ROWWISE, SOFTMAX, {"lanes": 128, "teams": 1, "hold": "registers"}, 64),
        (CUDA_ROWWISE, LONG_SOFTMAX, {"lanes": 1024, "cluster": 1, "hold": "queue"}, 64),
        (CUDA_ROWWISE, LONG_NORM, {"lanes": 256, "cluster": 4, "hold": "queue", "early": 1}, 128),
        (CUDA_ROWWISE, LONG_NORM, {"lanes": 256, "cluster": 4, "hold": "registers", "early": 0}, 96),
        (CUDA_ROWWISE, LONG_NORM, {"lanes": 512, "cluster": 2, "ahead": "two", "early": 1}, 128),
        (CUDA_ROWWISE, LONG_NORM, {"lanes": 512, "cluster": 1, "hold": "queue", "early": 3}, 128),
        (CUDA_ROWWISE, ODD, {"lanes": 512, "cluster": 1, "hold": "queue"}, 128),
        (CUDA_ROWWISE, NORM, {"lanes": 64, "teams": 2, "early": 0, "hold": "registers"}, 48),
        (CUDA_ROWWISE, ADDED, {"lanes": 128, "teams": 1, "early": 0, "hold": "registers"}, 72),
        (CUDA_ROWWISE, ARGMAX, {"lanes": 256, "cluster": 1}, 48),
        (CUDA_COLUMNWISE, COLUMNS, {"width": 32, "depth": 8, "unroll": 4, "splits": 8, "join": "launch"}, 48),
        (CUDA_COLUMNWISE, COLUMNS, {"width": 64, "depth": 8, "unroll": 8, "splits": 8, "join": "cluster"}, 64),
        (CUDA_COLUMNWISE, MEAN, {"width": 16, "depth": 32, "unroll": 4, "splits": 132, "deal": "turns"}, 48),
        (CUDA_COLUMNWISE, MEAN, {"width": 4, "depth": 128, "unroll": 8, "join": "cluster"}, 64),
    ],
)
def test_the_compiler_keeps_everything_in_registers(
    sketch: Sketch, workload: Workload, knobs: dict[str, Any], most_registers: int
) -> None:
    kernel = sketch.lower(workload, H200, schedule_of(sketch, workload, **knobs))
    for name, taken in build_kernel(kernel, H200).resources.items():
        assert taken.spill_bytes == 0 and taken.stack_bytes == 0, name
        assert taken.registers <= most_registers, name


@pytest.mark.parametrize("workload", [SOFTMAX, ODD, NORM, ADDED], ids=["softmax", "odd", "norm", "added"])
def test_rows_are_read_and_written_sixteen_bytes_at_a_time(workload: Workload) -> None:
    schedule = schedule_of(CUDA_ROWWISE, workload, teams=1, hold="registers", cluster=1)
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
def test_row_spaces_are_small_and_legal(workload: Workload, few: int, many: int) -> None:
    space = CUDA_ROWWISE.space(workload, H200)
    assert few <= len(space) <= many
    assert (space.quantities["shared_bytes"] <= 227 * 1024).all()
    assert (space.quantities["registers_estimate"] * space.quantities["threads"] <= 65536).all()
    assert (space.quantities["idle_share"] <= 0.26).all()


def test_clusters_and_queues_are_for_long_rows() -> None:
    short, long = CUDA_ROWWISE.space(NORM, H200), CUDA_ROWWISE.space(LONG_NORM, H200)
    assert set(short.column("cluster")) == {1}
    assert set(long.column("cluster")) >= {1, 2, 4, 8}
    without = CUDA_ROWWISE.space(LONG_NORM, type(H200)("cuda", "sm_80", threads=108, vector_bytes=16))
    assert set(without.column("cluster")) == {1}


def test_column_spaces_keep_the_device_busy() -> None:
    for workload in (COLUMNS, MEAN):
        space = CUDA_COLUMNWISE.space(workload, H200)
        assert 50 <= len(space) <= 400
        assert (space.quantities["blocks"] >= 64).all()
        assert (space.quantities["bytes_in_flight"] >= 32 * 1024).all()
