"""Large products with accumulators in tensor memory: what the kernels compute, and what the compiler makes of them.
Nothing here runs on a device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile.compiler import compiled
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.gpu.tcgen05 import TensorMemoryMma
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import walk_statements
from tilewright.schedule.gpu.gemm.tcgen05_space import CUDA_GEMM_TCGEN05 as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

B200 = Target("cuda", "sm_100a", (), threads=148, vector_bytes=16)
FEW = Target("cuda", "sm_100a", (), threads=2, vector_bytes=16)
"""A device with two multiprocessors: a CTA works through many tiles even of a small product."""


def _schedule(**knobs: int) -> Schedule:
    """The schedule with these knobs, and the first values of the others."""
    return Schedule.of(SKETCH.name, SKETCH.version, knobs)


def _two_outputs() -> Workload:
    """The product itself, in float32, and a transposed function of it, which is stored from registers."""
    x, y = te.placeholder((80, 136), "bfloat16", "X"), te.placeholder((72, 136), "bfloat16", "Y")
    k = te.reduce_axis(136, "k")
    total = te.compute(
        (80, 72), lambda n, m: te.sum(te.cast(x[n, k], "float32") * te.cast(y[m, k], "float32"), axis=k), "total"
    )
    return te.workload([total, te.compute((72, 80), lambda j, i: te.cast(total[i, j] * 0.5, "bfloat16"), "turned")])


CASES: dict[str, tuple[Target, Callable[[], Workload]]] = {
    "rows along k": (FEW, lambda: workload_of("matmul", m=200, n=136, k=328, dtype="float16", transpose_b=True)),
    "rows along m and n": (
        FEW,
        lambda: workload_of("matmul", m=136, n=264, k=200, dtype="bfloat16", transpose_a=True),
    ),
    "epilogue": (
        FEW,
        lambda: workload_of(
            "linear", rows=150, inputs=136, outputs=208, dtype="float16", activation="gelu_tanh", residual=True
        ),
    ),
    "batch": (
        B200,
        lambda: workload_of("batch_matmul", batch=3, m=72, n=80, k=72, dtype="bfloat16", transpose_b=True),
    ),
    "two outputs": (B200, _two_outputs),
    "odd rows": (B200, lambda: workload_of("linear", rows=70, inputs=77, outputs=111, dtype="float16")),
    "two accumulators": (FEW, lambda: workload_of("gated_linear", rows=200, inputs=136, outputs=152, dtype="float16")),
    "integers": (B200, lambda: workload_of("matmul", m=136, n=128, k=160, dtype="int8")),
    "8-bit floats": (
        B200,
        lambda: workload_of("scaled_matmul", m=136, n=128, k=160, scales="tensor", precision="fast_accumulation"),
    ),
    "tf32": (B200, lambda: workload_of("matmul", m=72, n=40, k=37, transpose_b=True, precision="tf32")),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    target, workload = CASES[case]
    assert assert_agrees(SKETCH, workload(), 3, target, policy=WHOLE) == 3


@pytest.mark.parametrize(
    "knobs",
    [
        {"consumer_warpgroups": 2, "ping_pong": 1, "atoms_m": 2, "mma_n": 32},
        {"consumer_warpgroups": 3, "ping_pong": 0, "atoms_m": 1, "mma_n": 32, "epilogue_stages": 0},
        {"consumer_warpgroups": 1, "atoms_m": 2, "mma_n": 32, "cluster_m": 2, "cluster_n": 2},
        {"consumer_warpgroups": 1, "atoms_m": 2, "mma_n": 96, "epilogue_stages": 1, "k_atoms": 2},
    ],
    ids=["ping-pong", "from registers", "clusters", "two widths of subtiles"],
)
def test_tiles_are_shared_out_in_every_way(knobs: dict[str, int]) -> None:
    """Each kernel works through several tiles, so that columns of tensor memory are used again."""
    workload = workload_of("matmul", m=520, n=200, k=200, dtype="float16", transpose_b=True)
    target = Target("cuda", "sm_100a", (), threads=4, vector_bytes=16)
    kernel = SKETCH.lower(workload, target, _schedule(**knobs))
    assert any(isinstance(s, TensorMemoryMma) for s in walk_statements(kernel.body))
    inputs = random_inputs(workload, 1)
    got, wanted = interpret(finish(kernel, target), inputs)["C"], reference(workload, inputs)["C"]
    absolute, relative = tolerance(workload)["C"]
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), relative, absolute)


@pytest.mark.parametrize(
    ("operator", "parameters", "kind", "mnemonic"),
    [
        ("matmul", {"dtype": "float16", "transpose_b": True}, "f16", "UTCHMMA"),
        ("matmul", {"dtype": "bfloat16"}, "f16", "UTCHMMA"),
        ("matmul", {"dtype": "int8", "transpose_b": True}, "i8", "UTCIMMA"),
        ("scaled_matmul", {"scales": "tensor", "precision": "fast_accumulation"}, "f8f6f4", "UTCQMMA"),
    ],
    ids=["float16", "B along n", "int8", "8-bit floats"],
)
def test_they_compile_to_instructions_of_tensor_memory(
    operator: str, parameters: dict[str, Any], kind: str, mnemonic: str
) -> None:
    workload = workload_of(operator, m=4096, n=4096, k=4096, **parameters)
    knobs = {"consumer_warpgroups": 2, "atoms_m": 2, "mma_n": 256, "k_atoms": 1, "cluster_m": 2}
    kernel = SKETCH.lower(workload, B200, _schedule(**knobs))
    assert build_kernel(kernel, B200).resources["tw_kernel"].spill_bytes == 0
    source = backend_for(B200).emit(finish(kernel, B200), B200)
    ptx = compiled(source, B200).ptx
    assert f"tcgen05.mma.cta_group::1.kind::{kind}" in ptx and "wgmma" not in ptx
    assert "tcgen05.ld.sync.aligned.16x256b" in ptx and "cp.async.bulk.tensor" in ptx
    assert ptx.count("multicast::cluster.b64") == 1  # the commit that releases a stage in both CTAs
    assert mnemonic in backend_for(B200).assembly(source, B200)


def test_accumulators_fit_into_tensor_memory() -> None:
    workload = workload_of("matmul", m=4096, n=4096, k=4096, dtype="float16", transpose_b=True)
    with pytest.raises(IllegalSchedule, match="rounded up to a power of two, fit into the 512 of a multiprocessor"):
        SKETCH.lower(workload, B200, _schedule(consumer_warpgroups=2, mma_n=256, ctas_per_sm=2, epilogue_stages=0))


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        ("scaled_matmul", {"scales": "tensor"}),
        ("scaled_matmul", {"scales": "block"}),
        ("matmul", {"precision": "bf16x6"}),
        ("matmul", {}),
    ],
    ids=["8-bit floats in ieee", "scales of blocks", "split float32", "float32"],
)
def test_what_would_be_promoted_is_left_to_others(operator: str, parameters: dict[str, Any]) -> None:
    workload = workload_of(operator, m=512, n=512, k=512, **parameters)
    assert not SKETCH.matches(workload, B200) and sketches_for(workload, B200)


def test_it_writes_for_no_other_architecture() -> None:
    workload = workload_of("matmul", m=512, n=512, k=512, dtype="float16", transpose_b=True)
    assert SKETCH.matches(workload, B200) and not SKETCH.matches(workload, H200)
