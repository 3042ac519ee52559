"""Products of TF32, 8-bit floats, 8-bit integers and split float32 by wgmma: values, errors, and what is refused."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, legal_schedule_of, schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM as SKETCH
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tf32, A along m and B along n": ("matmul", {"m": 72, "n": 104, "k": 50, "transpose_a": True, "precision": "tf32"}),
    "tf32, odd rows": ("matmul", {"m": 72, "n": 40, "k": 37, "transpose_b": True, "precision": "tf32"}),
    "tf32x3": ("matmul", {"m": 72, "n": 40, "k": 40, "transpose_b": True, "precision": "tf32x3"}),
    "bf16x9, batch": ("batch_matmul", {"batch": 2, "m": 40, "n": 40, "k": 40, "precision": "bf16x9"}),
    "int8, B along n": ("matmul", {"m": 72, "n": 104, "k": 138, "dtype": "int8"}),
    "int8, zero points": (
        "scaled_matmul",
        {"m": 72, "n": 104, "k": 272, "dtype": "int8", "zero_points": True, "bias": True},
    ),
    "uint8": ("matmul", {"m": 72, "n": 40, "k": 144, "transpose_b": True, "dtype": "uint8", "activation": "relu"}),
    "promoted, odd rows": ("scaled_matmul", {"m": 72, "n": 105, "k": 277, "bias": True}),
    "not promoted": (
        "scaled_matmul",
        {"m": 72, "n": 40, "k": 144, "scales": "tensor", "precision": "fast_accumulation"},
    ),
    "blocks": ("scaled_matmul", {"m": 72, "n": 200, "k": 400, "scales": "block", "result": "float32"}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    operator, parameters = CASES[case]
    assert assert_agrees(SKETCH, workload_of(operator, **parameters), 1, FEW) == 1


@pytest.mark.parametrize("knobs", [{"split_k": 2}, {"stream_k": 1}, {"ping_pong": 1, "atoms_m": 1}], ids=str)
def test_promoted_sums_can_be_shared_out(knobs: dict[str, int]) -> None:
    workload = workload_of("scaled_matmul", m=136, n=72, k=400, scales="block", result="float32")
    schedule = legal_schedule_of(SKETCH, workload, FEW, **knobs)
    _agrees(workload, schedule)


@pytest.mark.parametrize("knobs", [{"split_k": 1, "stream_k": 0}, {"split_k": 2}, {"stream_k": 1}], ids=str)
def test_lanes_share_the_scales_of_more_blocks_than_they_load_at_once(knobs: dict[str, int]) -> None:
    """A unit of stream-K begins and ends amid the four blocks whose scales lanes load together."""
    workload = workload_of("scaled_matmul", m=40, n=136, k=1400, scales="block", result="float32")
    _agrees(workload, legal_schedule_of(SKETCH, workload, FEW, consumer_warpgroups=1, mma_n=48, **knobs))


MEASURED: Mapping[tuple[int, int, int], Mapping[tuple[int, int], float]] = {
    (4096, 4096, 4096): {(2, 128): 121.2, (1, 192): 133.4, (1, 128): 135.1, (1, 160): 152.6, (2, 96): 174.9},
    (4096, 7168, 16384): {(2, 128): 790.5, (1, 192): 892.9, (1, 128): 976.2, (1, 160): 970.0, (2, 96): 1170.4},
    (4096, 2112, 7168): {(1, 192): 106.6, (2, 128): 140.1, (1, 128): 154.2, (1, 160): 144.5, (2, 96): 136.5},
    (8192, 8192, 8192): {(1, 192): 927.6, (2, 128): 978.1, (1, 128): 1065.3, (1, 160): 1164.2, (2, 96): 1218.9},
}
"""m, n, k of products with scales of blocks -> (atoms_m, mma_n) -> microseconds on an H100, the fastest first."""


@pytest.mark.parametrize("shape", MEASURED, ids=str)
def test_the_prior_knows_what_scales_of_blocks_cost(shape: tuple[int, int, int]) -> None:
    """Tiles with many scales are slow. Without scales, 128x160 is about as fast as 128x192."""
    workload = workload_of("scaled_matmul", **dict(zip("mnk", shape, strict=True)), scales="block")
    tile = {"consumer_warpgroups": 2, "ping_pong": 0, "cluster_m": 1, "cluster_n": 1, "split_k": 1, "stream_k": 0}
    schedules = [
        legal_schedule_of(SKETCH, workload, producer_warpgroup=1, epilogue_stages=2, atoms_m=a, mma_n=n, **tile)
        for a, n in MEASURED[shape]
    ]
    seconds = SKETCH.prior_seconds(workload, H200, schedules, {"peak_float32_flops_per_second": 61.3e12})
    measured = np.array([*MEASURED[shape].values()])
    assert int(seconds.argmin()) == 0
    np.testing.assert_allclose(1e6 * seconds, measured, rtol=0.15)


def test_what_the_prior_ranks_first_fits_into_registers_beside_scales_of_blocks() -> None:
    """It ranked stream-K units of 256x128 first, which spill."""
    workload = workload_of("scaled_matmul", m=4096, n=7168, k=16384, scales="block")
    schedule = default_schedule(workload, H200)
    for resources in build_kernel(SKETCH.lower(workload, H200, schedule), H200).resources.values():
        assert resources.spill_bytes == 0
    tile = {"atoms_m": 2, "mma_n": 128, "consumer_warpgroups": 2, "stream_k": 1}
    with pytest.raises(IllegalSchedule, match="at most 96 accumulators"):
        SKETCH.lower(workload, H200, Schedule.of("cuda_gemm", SKETCH.version, {**dict(schedule.knobs), **tile}))


@pytest.mark.parametrize("mma_n", [80, 96, 160, 192])
def test_tiles_may_begin_amid_the_columns_of_a_scale(mma_n: int) -> None:
    """The second tile has columns of two scales of B, which meet at another place than in the first one."""
    workload = workload_of("scaled_matmul", m=64, n=2 * mma_n, k=300, scales="block", result="float32")
    _agrees(workload, legal_schedule_of(SKETCH, workload, FEW, mma_n=mma_n))


def _agrees(workload: Workload, schedule: Schedule) -> None:
    inputs = random_inputs(workload, 3)
    got = interpret(finish(SKETCH.lower(workload, FEW, schedule), FEW), inputs)
    for name, wanted in reference(workload, inputs).items():
        absolute, relative = tolerance(workload)[name]
        np.testing.assert_allclose(np.asarray(got[name], np.float64), wanted, relative, absolute)


def test_mixed_types_of_8_bits() -> None:
    a, b, k = te.placeholder((72, 144), "float8_e4m3fn"), te.placeholder((40, 144), "float8_e5m2"), te.reduce_axis(144)
    total = te.compute((72, 40), lambda i, j: te.sum(te.cast(a[i, k], "float32") * te.cast(b[j, k], "float32"), axis=k))
    assert assert_agrees(SKETCH, te.workload(total), 1, FEW) == 1


@pytest.mark.parametrize(("precision", "most"), [("tf32x3", 2.0), ("bf16x6", 2.0), ("tf32", 0.0)])
def test_split_sums_are_as_exact_as_float32(precision: str, most: float) -> None:
    """On normal inputs, by root mean square, against what float32 itself makes of them. TF32 alone is far from it."""
    workload = workload_of("matmul", m=66, n=32, k=256, transpose_b=True, precision=precision)
    draw = np.random.default_rng(1)
    inputs = {t.name: draw.standard_normal(t.shape).astype(np.float32) for t in workload.inputs}
    exact = inputs["A"].astype(np.float64) @ inputs["B"].T.astype(np.float64)
    kernel = SKETCH.lower(workload, FEW, SKETCH.space(workload, FEW).schedule(0))
    result = np.asarray(interpret(finish(kernel, FEW), inputs)["C"], np.float64)

    def rms(values: Any) -> float:
        return float(np.sqrt(np.mean((np.asarray(values, np.float64) - exact) ** 2)))

    ratio = rms(result) / rms(inputs["A"] @ inputs["B"].T)
    assert ratio <= most if most else ratio > 100


@pytest.mark.parametrize(
    ("operator", "parameters", "instruction"),
    [
        ("matmul", {"transpose_b": True, "precision": "tf32"}, "HGMMA.64x256x8.F32.TF32"),
        ("matmul", {"transpose_b": True, "dtype": "int8"}, "IGMMA.64x256x32"),
        ("scaled_matmul", {"scales": "block"}, "QGMMA.64x128x32.F32.E4M3.E4M3"),
        ("scaled_matmul", {"scales": "block"}, "QGMMA.64x192x32.F32.E4M3.E4M3"),
        ("matmul", {"precision": "bf16x6"}, "HGMMA.64x128x16.F32.BF16"),
    ],
    ids=["tf32", "int8", "blocks", "blocks-192", "bf16x6"],
)
def test_nothing_spills_and_wgmma_stays_under_way(operator: str, parameters: dict[str, Any], instruction: str) -> None:
    workload = workload_of(operator, m=4096, n=4096, k=4096, **parameters)
    columns = int(instruction.split("x")[1])
    knobs = {"consumer_warpgroups": 2, "ping_pong": 0, "atoms_m": 1, "mma_n": columns, "split_k": 1, "stream_k": 0}
    kernel = SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, **knobs))
    for resources in build_kernel(kernel, H200).resources.values():  # refuses what the assembler warns of
        assert resources.spill_bytes == 0 and resources.stack_bytes == 0
    backend = backend_for(H200)
    source = backend.emit(finish(kernel, H200), H200)
    assert instruction in backend.assembly(source, H200)
    rounds = any(described.rounds_to_tf32 for config in source.launches for described in config.tensor_maps)
    assert rounds == (parameters.get("precision") == "tf32")


def test_what_matrix_units_do_is_never_chosen_silently() -> None:
    def taken(target: Target = H200, **parameters: object) -> bool:
        return SKETCH.matches(workload_of("matmul", m=128, n=128, k=128, transpose_b=True, **parameters), target)

    assert not taken() and not taken(dtype="float64")
    assert taken(precision="tf32") and taken(precision="bf16x6") and taken(dtype="int8")
    assert not taken(Target("cuda", "sm_80", (), threads=108, vector_bytes=16), precision="tf32")
    assert taken(dtype="float16", precision="tf32")  # a permission that float16 does not need
    spaces = [SKETCH.space(workload_of("matmul", m=128, n=128, k=128, dtype="float16", precision=p), H200, policy=WHOLE)
              for p in ("ieee", "tf32")]  # fmt: skip
    assert np.array_equal(spaces[0].codes, spaces[1].codes)
