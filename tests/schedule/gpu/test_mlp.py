"""Multilayer perceptrons in one kernel: what is recognised, what kernels compute, what the compiler makes of them."""

from collections.abc import Callable

import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, compiled, schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.target import Target
from tilewright.schedule.gpu.mlp.space import CUDA_MLP as SKETCH
from tilewright.schedule.problems.mlp import mlp_of
from tilewright.te import build as te
from tilewright.te.workload import Workload

THREE = workload_of("mlp", rows=32, width=128, layers=3, dtype="float16")
WIDE = workload_of("mlp", rows=2048, width=1024, dtype="bfloat16")
A100 = Target("cuda", "sm_80", (), threads=108, vector_bytes=16)


def _softmax_of_transposed_product() -> Workload:
    """Softmax of a product whose left factor is B, with a residual; the output is transposed. The tensors have names
    that the kernel would use itself."""
    x, w, r = (
        te.placeholder(shape, "float16", name)
        for shape, name in (((19, 40), "b_stages"), ((72, 40), "W"), ((19, 72), "R"))
    )
    k, a, b = te.reduce_axis(40, "k"), te.reduce_axis(72, "a"), te.reduce_axis(72, "b")
    total = te.compute(
        (72, 19), lambda j, i: te.sum(te.cast(w[j, k], "float32") * te.cast(x[i, k], "float32"), axis=k), "accumulators"
    )
    most = te.compute((19,), lambda i: te.max(total[a, i], axis=a), "most")
    all_ = te.compute((19,), lambda i: te.sum(te.exp(total[b, i] - most[i]), axis=b), "all")
    y = te.compute(
        (72, 19),
        lambda j, i: te.cast(te.exp(total[j, i] - most[i]) / all_[i] + te.cast(r[i, j], "float32"), "float16"),
        "of_warps",
    )
    return te.workload(y, inputs=[x, w, r])


def _unlike_layers() -> Workload:
    """Two layers of unlike widths with no statistics in between, the first longer than a tile of k, B N-major."""
    x, u, v = (
        te.placeholder(shape, "bfloat16", name)
        for shape, name in (((50, 104), "X"), ((104, 160), "U"), ((160, 24), "V"))
    )
    k, q = te.reduce_axis(104, "k"), te.reduce_axis(160, "q")
    first = te.compute(
        (50, 160), lambda i, j: te.sum(te.cast(x[i, k], "float32") * te.cast(u[k, j], "float32"), axis=k), "first"
    )
    held = te.compute((50, 160), lambda i, j: te.cast(te.maximum(first[i, j], 0.0), "bfloat16"), "held")
    last = te.compute(
        (50, 24), lambda i, j: te.sum(te.cast(held[i, q], "float32") * te.cast(v[q, j], "float32"), axis=q), "last"
    )
    return te.workload(te.compute((50, 24), lambda i, j: te.cast(last[i, j], "bfloat16"), "Y"), inputs=[x, u, v])


CASES: dict[str, Callable[[], Workload]] = {
    "one layer": lambda: workload_of("mlp", rows=16, width=48, dtype="bfloat16"),
    "ragged rows": lambda: workload_of("mlp", rows=37, width=64, layers=2, dtype="float16"),
    "columns beyond the last": lambda: workload_of("mlp", rows=20, width=160, layers=2, dtype="float16"),
    "clusters that divide columns": lambda: workload_of("mlp", rows=19, width=256, dtype="float16"),
    "softmax of a transposed product": _softmax_of_transposed_product,
    "unlike layers": _unlike_layers,
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 3) >= 2


@pytest.mark.parametrize(
    "case", ["one layer", "columns beyond the last", "clusters that divide columns", "unlike layers"]
)
def test_every_legal_setting_computes_the_expression(case: str) -> None:
    workload = CASES[case]()
    assert len(SKETCH.space(workload, H200, policy=EVERY_LEGAL)) > len(SKETCH.space(workload, H200))
    assert assert_agrees(SKETCH, workload, 3, H200, EVERY_LEGAL) == 3


def test_fewer_stages_than_tiles_of_all_layers_go_round() -> None:
    workload = workload_of("mlp", rows=16, width=512, layers=2, dtype="float16")
    assert SKETCH.space(workload, H200).quantities["stages"].max() < 16
    assert assert_agrees(SKETCH, workload, 1) == 1


def test_what_layers_are() -> None:
    found = mlp_of(THREE)
    assert found is not None and len(found.layers) == 3
    assert [len(layer.statistics) for layer in found.layers] == [2, 2, 2]
    assert [layer.value is None for layer in found.layers] == [False, False, True]
    assert mlp_of(workload_of("linear", rows=32, inputs=128, outputs=128, dtype="float16")) is None
    assert mlp_of(workload_of("layer_norm", rows=32, columns=128)) is None
    assert mlp_of(workload_of("gated_linear", rows=32, inputs=128, outputs=128, dtype="float16")) is None


def test_what_it_leaves_to_others() -> None:
    def taken(target: Target = H200, **parameters: object) -> bool:
        return SKETCH.matches(
            workload_of("mlp", **{"rows": 32, "width": 128, "dtype": "float16", **parameters}), target
        )

    assert taken() and taken(dtype="bfloat16") and taken(layers=8) and taken(A100) and taken(width=1024)
    assert not taken(dtype="float32") and not taken(accumulate="float64")
    assert not taken(width=60) and not taken(width=8192)


@pytest.mark.parametrize(
    "knobs", [{"atoms_m": 1, "warps_n": 8, "tile_k": 64}, {"atoms_m": 2, "warps_n": 4, "tile_k": 128}]
)
def test_nothing_spills_and_layers_are_one_function(knobs: dict[str, int]) -> None:
    resources = compiled(SKETCH, THREE, **knobs)
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0
    schedule = schedule_of(SKETCH, THREE, **knobs)
    source = backend_for(H200).emit(finish(SKETCH.lower(THREE, H200, schedule), H200), H200)
    (launch,) = source.launches
    row = SKETCH.space(THREE, H200).row_of(schedule)
    assert row is not None
    assert abs(int(SKETCH.space(THREE, H200).quantities["shared_bytes"][row]) - launch.shared_bytes) <= 256


def test_wide_rows_and_older_devices_spill_nothing() -> None:
    for workload, target in ((WIDE, H200), (THREE, A100)):
        schedule = SKETCH.space(workload, target).schedule(0)
        (resources,) = build_kernel(SKETCH.lower(workload, target, schedule), target).resources.values()
        assert resources.spill_bytes == 0
