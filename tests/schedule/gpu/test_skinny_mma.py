"""Products with few rows on mma.sync: what the sketch takes, what kernels compute, what the compiler makes of them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, compiled, schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.core.target import Target
from tilewright.schedule.gpu.skinny.mma_space import CUDA_SKINNY_MMA as SKETCH
from tilewright.te import build as te
from tilewright.te.workload import Workload

OTHER = replace(H200, arch="sm_100a")
"""A device without wgmma, where this sketch takes more rows."""
SIXTEEN = workload_of("linear", rows=16, inputs=4096, outputs=4096, dtype="bfloat16", bias=False)
THIRTY_TWO = workload_of("matmul", m=32, n=4096, k=4096, dtype="bfloat16")
ALONG_N = workload_of("matmul", m=16, n=4096, k=4096, dtype="float16")


def _two_outputs() -> Workload:
    """The accumulator and a transposed function of it. The tensors have names that the kernel would use itself."""
    x, w = te.placeholder((12, 136), "bfloat16", "partials"), te.placeholder((52, 136), "bfloat16", "rank")
    k = te.reduce_axis(136, "lane")
    total = te.compute(
        (12, 52), lambda n, m: te.sum(te.cast(x[n, k], "float32") * te.cast(w[m, k], "float32"), axis=k), "accumulators"
    )
    transposed = te.compute((52, 12), lambda j, i: te.cast(total[i, j] * 0.5, "bfloat16"), "a_stages")
    return te.workload([total, transposed])


CASES: dict[str, Callable[[], Workload]] = {
    "epilogue": lambda: workload_of(
        "linear", rows=5, inputs=648, outputs=100, dtype="float16", activation="gelu_tanh", residual=True
    ),
    "n of no multiple": lambda: workload_of("linear", rows=15, inputs=520, outputs=77, dtype="bfloat16"),
    "along n": lambda: workload_of("matmul", m=9, n=136, k=600, dtype="float16", bias=True),
    "many rows": lambda: workload_of("matmul", m=32, k=384, n=80, dtype="bfloat16"),
    "n short": lambda: workload_of("matmul", m=72, n=3, k=264, dtype="float16", transpose_b=True),
    "two outputs": _two_outputs,
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 4, OTHER) == 4


@pytest.mark.parametrize("case", ["epilogue", "along n", "n short"])
def test_every_legal_setting_computes_the_expression(case: str) -> None:
    workload = CASES[case]()
    assert len(SKETCH.space(workload, OTHER, policy=EVERY_LEGAL)) > len(SKETCH.space(workload, OTHER))
    assert assert_agrees(SKETCH, workload, 6, OTHER, EVERY_LEGAL) == 6


def test_what_it_leaves_to_others() -> None:
    def taken(target: Target = H200, **parameters: object) -> bool:
        return SKETCH.matches(workload_of("linear", **{"rows": 4, "inputs": 64, "outputs": 64, **parameters}), target)

    assert taken(dtype="float16") and taken(dtype="bfloat16", rows=8) and not taken(dtype="bfloat16", rows=9)
    assert taken(OTHER, dtype="bfloat16", rows=9) and taken(OTHER, dtype="float16", rows=64)
    assert not taken(dtype="float32")
    assert not taken(dtype="float16", rows=65, outputs=128)
    assert not taken(dtype="float16", accumulate="float64")
    assert taken(dtype="float16", rows=9, inputs=60)  # rows begin between vectors of 16 bytes, where TMA loads none
    assert SKETCH.matches(workload_of("matmul", m=9, n=60, k=64, dtype="float16"), H200)
    assert not SKETCH.matches(workload_of("matmul", m=4, n=64, k=64, dtype="float16", transpose_a=True), H200)


@pytest.mark.parametrize("workload", [SIXTEEN, THIRTY_TWO, ALONG_N], ids=["16", "32", "along n"])
def test_spaces_are_small_and_every_setting_fits(workload: Workload) -> None:
    space = SKETCH.space(workload, OTHER)
    assert 20 <= len(space) <= 300
    assert (space.quantities["shared_bytes"] <= 227 * 1024).all()
    assert (space.quantities["bytes_in_flight"] >= 24 * 1024).all()
    rows = np.arange(0, len(space), 7)
    derived = SKETCH.derive(workload, OTHER, [space.schedule(int(r)) for r in rows])
    for name, column in space.quantities.items():
        np.testing.assert_array_equal(derived[name], column[rows])


@pytest.mark.parametrize("workload", [SIXTEEN, THIRTY_TWO, ALONG_N], ids=["16", "32", "along n"])
def test_shared_memory_is_what_the_sketch_says(workload: Workload) -> None:
    space = SKETCH.space(workload, OTHER)
    for row in range(0, len(space), max(1, len(space) // 6)):
        kernel = finish(SKETCH.lower(workload, OTHER, space.schedule(row)), OTHER)
        (launch,) = backend_for(OTHER).emit(kernel, OTHER).launches
        assert 0 <= int(space.quantities["shared_bytes"][row]) - launch.shared_bytes <= 64  # padding of the last line


def test_older_devices_have_no_clusters() -> None:
    old = Target("cuda", "sm_80", (), threads=108, vector_bytes=16)
    assert set(SKETCH.space(SIXTEEN, old).column("split_k").tolist()) == {1}


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (SIXTEEN, {"atoms_n": 2, "warps_n": 1, "warps_k": 8, "tile_k": 64, "split_k": 1}),
        (THIRTY_TWO, {"atoms_n": 2, "warps_n": 2, "warps_k": 2, "tile_k": 128, "split_k": 2}),
        (ALONG_N, {"atoms_n": 4, "warps_n": 1, "warps_k": 4, "tile_k": 64, "split_k": 2}),
    ],
    ids=["16", "32", "along n"],
)
def test_nothing_spills_and_the_matrix_units_are_used(workload: Workload, knobs: dict[str, int]) -> None:
    resources = compiled(SKETCH, workload, OTHER, **knobs)
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0
    kernel = finish(SKETCH.lower(workload, OTHER, schedule_of(SKETCH, workload, OTHER, **knobs)), OTHER)
    backend = backend_for(OTHER)
    assert "HMMA.16816.F32" in backend.assembly(backend.emit(kernel, OTHER), OTHER)
