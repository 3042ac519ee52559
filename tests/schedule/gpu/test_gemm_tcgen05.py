"""Large products with accumulators in tensor memory: what the kernels compute, and what the compiler makes of them.
Nothing here runs on a device."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile.compiler import compiled
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.dtypes import uint8
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.expr import Expr
from tilewright.ir.gpu.tcgen05 import BLOCK_SCALED_ATOMS, BlockScaledMma, TensorMemoryMma
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


FORMATS: dict[str, dict[str, Any]] = {
    "mxfp8": {"dtype": "float8_e4m3fn"},
    "mxfp4": {"dtype": "uint8"},
    "nvfp4": {"dtype": "uint8", "scales": "e4m3"},
}
"""Formats with scales of blocks, as parameters of their operator."""


def _scaled(name: str, m: int, n: int, k: int, result: str = "float32") -> Workload:
    given = {"m": m, "n": n, "k": k, "result": result, "precision": "fast_accumulation"}
    return workload_of("block_scaled_matmul", **given, **FORMATS[name])


def _whole_numbers(workload: Workload, k: int, powers: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Inputs such that no order of additions rounds, and their product. Some scales are negative zeros."""
    draw, inputs, sides = stream(1, "block scales"), dict[str, Any](), list[np.ndarray]()
    for name in "AB":
        values, scales = (next(b for b in workload.inputs if b.name == x) for x in (name, f"S{name}"))
        if values.dtype == uint8:
            codes = draw.integers(0, 16, (values.shape[0], k)).astype(np.uint8)
            inputs[name], numbers = codes[:, ::2] | codes[:, 1::2] << 4, codes.view(ml_dtypes.float4_e2m1fn)
        else:
            numbers = inputs[name] = draw.integers(-4, 5, values.shape).astype(values.dtype.numpy)
        if powers:
            inputs[scales.name] = draw.integers(126, 130, scales.shape).astype(np.uint8)
            factors = 2.0 ** (inputs[scales.name].astype(np.float64) - 127)
        else:
            inputs[scales.name] = draw.choice([-0.0, 0.5, 0.75, -1.5, 2.0], scales.shape).astype(scales.dtype.numpy)
            factors = np.abs(inputs[scales.name].astype(np.float64))
            inputs[f"G{name}"] = np.full(1, 0.5, np.float32)
        repeated = np.repeat(factors, -(-k // factors.shape[1] // 16) * 16, axis=1)[:, :k]
        sides.append(numbers.astype(np.float64) * repeated)
    return inputs, sides[0] @ sides[1].T * (1.0 if powers else 0.25)


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("mxfp8", {"consumer_warpgroups": 2, "ping_pong": 1, "mma_n": 128, "epilogue_stages": 0}),
        ("mxfp8", {"consumer_warpgroups": 1, "mma_n": 256, "k_atoms": 2, "cluster_m": 2}),
        ("mxfp4", {"consumer_warpgroups": 2, "ping_pong": 0, "mma_n": 128, "epilogue_stages": 2}),
        ("mxfp4", {"consumer_warpgroups": 1, "mma_n": 256, "k_atoms": 2, "cluster_m": 2, "epilogue_stages": 0}),
        ("nvfp4", {"consumer_warpgroups": 2, "ping_pong": 1, "mma_n": 128, "epilogue_stages": 0}),
        ("nvfp4", {"consumer_warpgroups": 1, "mma_n": 256, "cluster_n": 2, "epilogue_stages": 0}),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(f"{k}={v}" for k, v in x.items()),
)
def test_block_scaled_products_agree(name: str, knobs: dict[str, int]) -> None:
    """All numbers are such that no order of additions rounds. Rows of 4-bit operands are repacked."""
    m, n, k = 264, 272, 400
    workload, target = _scaled(name, m, n, k), Target("cuda", "sm_100a", (), threads=4, vector_bytes=16)
    inputs, wanted = _whole_numbers(workload, k, name != "nvfp4")
    kernel = SKETCH.lower(workload, target, _schedule(atoms_m=2, **knobs))
    assert {s.atom for s in walk_statements(kernel.body) if isinstance(s, BlockScaledMma)} == {name}
    np.testing.assert_array_equal(interpret(finish(kernel, target), inputs)["C"], wanted)


@pytest.mark.parametrize(
    ("name", "instruction", "groups"),
    [
        ("mxfp8", "kind::mxf8f6f4.block_scale.scale_vec::1X", 1),
        ("mxfp4", "kind::mxf4.block_scale.scale_vec::2X", 2),
        ("nvfp4", "kind::mxf4nvf4.block_scale.scale_vec::4X", 4),
    ],
)
def test_block_scaled_products_compile_to_their_instruction(name: str, instruction: str, groups: int) -> None:
    workload = _scaled(name, 512, 512, 1024)
    knobs = {"consumer_warpgroups": 1, "atoms_m": 2, "mma_n": 256, "epilogue_stages": 2}
    kernel = SKETCH.lower(workload, B200, _schedule(**knobs))
    assert build_kernel(kernel, B200).resources["tw_kernel"].spill_bytes == 0
    source = backend_for(B200).emit(finish(kernel, B200), B200)
    ptx = compiled(source, B200).ptx
    assert ptx.count(f"tcgen05.mma.cta_group::1.{instruction}") == 4
    assert ptx.count("tcgen05.cp.cta_group::1.32x128b.warpx4") == 3 * groups  # 128 rows of A, twice as many of B
    assert len(re.findall(r"\bUTC[OQ]MMA\b", backend_for(B200).assembly(source, B200))) == 4
    lines = 1024 // BLOCK_SCALED_ATOMS[name].line
    assert kernel.workspace[0].shape == (lines * groups, 4, 32, 16)


def _by_hand(
    k: int = 256, block: int = 16, scale: Callable[[Expr], Expr] = te.absolute, place: int = 0, precision: str = ""
) -> Workload:
    """A product of NVFP4, or of what is nearly it."""
    a, b = te.placeholder((128, 256), "uint8", "A"), te.placeholder((128, 256), "uint8", "B")
    of_a, of_b = te.placeholder((128, 32), "float8_e4m3fn", "SA"), te.placeholder((128, 32), "float8_e4m3fn", "SB")
    r = te.reduce_axis(k, "k")

    def factor(values: te.Tensor, scales: te.Tensor, row: Expr) -> Expr:
        return te.e2m1(values[row, r // 2], r + place if place else r) * scale(
            te.cast(scales[row, r // block], "float32")
        )

    total = te.compute((128, 128), lambda i, j: te.sum(factor(a, of_a, i) * factor(b, of_b, j), axis=r), "total")
    return te.workload(total, precision=precision or "fast_accumulation")


def test_what_lies_behind_k_does_not_count() -> None:
    """Rows go on behind the last place of k, and their scales are no numbers there."""
    workload, draw = _by_hand(k=160), stream(1, "behind k")
    inputs = {b.name: draw.integers(0, 256, b.shape).astype(np.uint8).view(b.dtype.numpy) for b in workload.inputs}
    for name in ("SA", "SB"):
        inputs[name] = draw.choice([-0.5, 1.0, 2.0], (128, 32)).astype(inputs[name].dtype)
        inputs[name][:, 10:] = np.nan
    knobs = {"consumer_warpgroups": 1, "atoms_m": 2, "mma_n": 128, "k_atoms": 4}
    kernel = SKETCH.lower(workload, B200, _schedule(**knobs))
    got = interpret(finish(kernel, B200), inputs)["total"]
    np.testing.assert_array_equal(got, reference(workload, inputs)["total"])


@pytest.mark.parametrize(
    "change",
    [{"block": 32}, {"scale": lambda s: s}, {"place": 1}, {"k": 255}, {"precision": "ieee"}],
    ids=["block", "signs", "other half", "odd k", "ieee"],
)
def test_what_is_nearly_a_format_is_left_to_others(change: dict[str, Any]) -> None:
    workload = _by_hand(**change)
    assert SKETCH.matches(_by_hand(), B200) and not SKETCH.matches(workload, B200) and sketches_for(workload, B200)


def test_powers_of_two_have_one_block_and_one_bias() -> None:
    def scaled(block: int, bias: float) -> Workload:
        a, b = te.placeholder((128, 256), "float8_e4m3fn", "A"), te.placeholder((128, 256), "float8_e5m2", "B")
        of_a, of_b = te.placeholder((128, 8), "uint8", "SA"), te.placeholder((128, 8), "uint8", "SB")
        r = te.reduce_axis(256, "k")

        def factor(values: te.Tensor, scales: te.Tensor, row: Expr) -> Expr:
            return te.cast(values[row, r], "float32") * te.exp2(te.cast(scales[row, r // block], "float32") - bias)

        total = te.compute((128, 128), lambda i, j: te.sum(factor(a, of_a, i) * factor(b, of_b, j), axis=r), "total")
        return te.workload(total, precision="fast_accumulation")

    assert [SKETCH.matches(scaled(*form), B200) for form in ((32, 127.0), (64, 127.0), (32, 126.0))] == [
        True,
        False,
        False,
    ]


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
