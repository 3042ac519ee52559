"""Convolutions whose outputs are stored with their pixels side by side: NCHW, and channels that become pixels."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, legal_schedule_of, schedule_of
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.target import Target
from tilewright.ir.expr import Expr
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import stores_of
from tilewright.ir.stmt import Kernel
from tilewright.ir.verify import verify
from tilewright.schedule.gpu.conv.space import CUDA_CONV as SKETCH
from tilewright.schedule.problems.implicit_gemm import implicit_gemm_of
from tilewright.te import build as te
from tilewright.te.channels_last import channels_last_steps
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device with two multiprocessors: a CTA works through many tiles even of a small product."""


def conv(
    batch: int = 2, channels: int = 32, height: int = 6, width: int = 10, filters: int = 24, stride: int = 1,
    padding: int = 1, residual: bool = False, shuffle: int = 1, crop: int = 0, result: str = "float32",
) -> Workload:  # fmt: skip
    """relu(convolution + bias), of NHWC images and a 3x3 window, as NCHW, or with ``shuffle``² channels as pixels."""
    x = te.placeholder((batch, height, width, channels), "float32", "X")
    w, bias = te.placeholder((filters, 3, 3, channels), "float32", "W"), te.placeholder((filters,), "float32", "B")
    c, r, s = te.reduce_axis(channels, "c"), te.reduce_axis(3, "r"), te.reduce_axis(3, "s")
    rows, columns = ((n + 2 * padding - 3) // stride + 1 for n in (height, width))

    def seen(n: Expr, y: Expr, z: Expr) -> Expr:
        row, column = y * stride + r - padding, z * stride + s - padding
        inside = te.all_of(row >= 0, row < height, column >= 0, column < width)
        return te.select(inside, x[n, row, column, c], te.constant(0, x.dtype))

    def terms(n: Expr, y: Expr, z: Expr, o: Expr) -> te.Reduction:
        return te.sum(w[o, r, s, c] * seen(n, y, z), axis=(r, s, c))

    total = te.compute((batch, rows, columns, filters), terms, "total")
    if crop:

        def cropped(n: Expr, o: Expr, y: Expr, z: Expr) -> Expr:
            channel = (o * shuffle + y % shuffle) * shuffle + z % shuffle
            return te.maximum(total[n, y // shuffle, z // shuffle, channel] + bias[channel], 0.0)

        shape = (batch, filters // shuffle**2, rows * shuffle - crop, columns * shuffle - crop)
        return te.workload(te.compute(shape, cropped, "Y"), precision="tf32")
    if shuffle > 1:
        outer = filters // shuffle**2

        def shuffled(n: Expr, o: Expr, y: Expr, p: Expr, z: Expr, q: Expr) -> Expr:
            channel = (o * shuffle + p) * shuffle + q
            return te.cast(te.maximum(total[n, y, z, channel] + bias[channel], 0.0), result)

        return te.workload(te.compute((batch, outer, rows, shuffle, columns, shuffle), shuffled, "Y"), precision="tf32")
    added = te.placeholder((batch, filters, rows, columns), "float32", "R") if residual else None

    def output(n: Expr, o: Expr, y: Expr, z: Expr) -> Expr:
        value = total[n, y, z, o] + bias[o]
        return te.cast(te.maximum(value if added is None else value + added[n, o, y, z], 0.0), result)

    return te.workload(te.compute((batch, filters, rows, columns), output, "Y"), precision="tf32")


def check(workload: Workload, target: Target = H200, **knobs: Any) -> Kernel:
    """The kernel of the first legal schedule with these knobs, once the interpreter agrees with the reference."""
    kernel = SKETCH.lower(workload, target, legal_schedule_of(SKETCH, workload, target, **knobs))
    verify(kernel)
    inputs, (output,) = random_inputs(workload, 1), workload.outputs
    got = interpret(finish(kernel, target), inputs)[output]
    absolute, relative = tolerance(workload)[output]
    wanted = np.asarray(reference(workload, inputs)[output], np.float64)
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, relative, absolute)
    return kernel


CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "im2col": ({}, {"pixels": "im2col", "mma_n": 32}),
    "one channel": ({"channels": 1}, {"pixels": "im2col", "mma_n": 32}),
    "strided, odd filters": ({"stride": 2, "filters": 19}, {"pixels": "im2col", "mma_n": 32}),
    "patches beyond the last pixel": ({}, {"pixels": "1x8x8", "mma_n": 32}),
    "halo": ({"residual": True, "height": 7}, {"pixels": "halo_1x8x8", "mma_n": 32}),
    "split_k": ({"height": 4}, {"pixels": "im2col", "split_k": 2, "mma_n": 32}),
    "split_k of halos": ({"batch": 1, "channels": 64}, {"pixels": "halo_1x8x8", "split_k": 2, "mma_n": 32}),
    "two filters": ({"filters": 40}, {"pixels": "im2col", "cluster_n": 2, "mma_n": 32}),
    "channels as pixels, 16 bits": ({"shuffle": 2, "result": "float16"}, {"pixels": "im2col", "mma_n": 32}),
    "all but the last pixels": ({"shuffle": 2, "crop": 1}, {"pixels": "halo_1x8x8", "mma_n": 32}),
    "all but the last pixels, split_k": (
        {"shuffle": 2, "crop": 1, "batch": 1},
        {"pixels": "im2col", "mma_n": 32, "split_k": 2},
    ),
    "channels as pixels": ({"shuffle": 2}, {"pixels": "halo_1x8x8", "mma_n": 32}),
    "16 bits": ({"width": 16, "result": "float16"}, {"pixels": "im2col", "mma_n": 32, "epilogue_stages": 1}),
    "16 bits, from registers": ({"width": 16, "result": "float16"}, {"mma_n": 32, "epilogue_stages": 0}),
    "16 bits, patches beyond the last pixel": (
        {"width": 24, "result": "bfloat16", "residual": True},
        {"pixels": "1x2x32", "mma_n": 32, "epilogue_stages": 1},
    ),
    "16 bits, halo": (
        {"width": 16, "height": 7, "result": "float16", "residual": True},
        {"pixels": "halo_1x8x8", "mma_n": 32, "epilogue_stages": 1},
    ),
    "16 bits, more than a subtile": (
        {"width": 16, "result": "float16", "filters": 72},
        {"pixels": "im2col", "mma_n": 96, "epilogue_stages": 1},
    ),
    "16 bits, strided": (
        {"width": 15, "result": "float16", "stride": 2},
        {"pixels": "im2col", "mma_n": 32, "epilogue_stages": 1},
    ),
    "16 bits, split_k": ({"width": 16, "result": "float16"}, {"pixels": "im2col", "split_k": 2, "mma_n": 32}),
    "odd numbers of channels as pixels": ({"shuffle": 3, "filters": 18}, {"pixels": "im2col", "mma_n": 32}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    parameters, knobs = CASES[case]
    check(conv(**parameters), **{"atoms_m": 1, "cluster_m": 1, **knobs})


@pytest.mark.parametrize("knobs", [{"ping_pong": 1, "consumer_warpgroups": 2}, {"stream_k": 1}])
def test_ctas_go_from_tile_to_tile(knobs: dict[str, int]) -> None:
    check(conv(batch=3, height=8), FEW, pixels="halo_1x8x8", mma_n=32, atoms_m=1, **knobs)


def gradient(stride: int, size: int, result: str = "float16", filters: int = 40, operand: str = "float16") -> Workload:
    """The gradient of a 3x3 convolution with a stride and padding 1 towards its image, of NHWC, as NCHW."""
    count = (size - 1) // stride + 1
    places = f"(y + 1 - r) // {stride}", f"(x + 1 - s) // {stride}"
    inside = " and ".join(f"{p.replace('//', '%')} == 0 and {p} >= 0 and {p} < {count}" for p in places)
    return parse_workload(
        f"D: {operand}[2, {count}, {count}, 64]\nW: {operand}[64, 3, 3, {filters}]\n"
        f"G[n, c < {filters}, y < {size}, x < {size}] = sum over r < 3, s < 3, k < 64 of "
        f"select({inside}, float32(D[n, {', '.join(places)}, k]), 0.0) * float32(W[k, r, s, c])\n"
        f"Z[n, c, y, x] = {result}(G[n, c, y, x] * 0.5)"
    )


def phased(**changed: Any) -> Workload:
    """The last step of a transposed convolution with channels first, whose phases are axes of the result."""
    sizes = {"batch": 2, "channels": 64, "height": 4, "width": 8, "filters": 24, "kernel_h": 4, "kernel_w": 4}
    workload = OPERATORS["conv2d_transpose"].workload(
        {**sizes, "stride": 2, "padding": 1, "dtype": "float16", "bias": True, **changed}
    )
    return dict(channels_last_steps(workload))["channels_last_in"][-1]


PHASES: Mapping[str, tuple[Workload, dict[str, Any]]] = {
    "gradient": (gradient(2, 16), {"pixels": "im2col"}),
    "gradient, patches": (gradient(2, 16, "bfloat16"), {"pixels": "1x8x8"}),
    "gradient, odd pixels": (gradient(2, 15), {"pixels": "im2col", "split_k": 2}),
    "gradient in float32": (gradient(3, 12, "float32"), {"pixels": "im2col", "stream_k": 1}),
    "transposed": (phased(), {"pixels": "im2col", "ping_pong": 1, "consumer_warpgroups": 2}),
    "transposed, residual and groups": (phased(residual=True, groups=2, channels=128), {"pixels": "im2col"}),
    "transposed, TF32": (phased(dtype="float32", precision="tf32"), {"pixels": "im2col"}),
}


@pytest.mark.parametrize("case", PHASES)
def test_the_pixels_of_a_phase_are_stored_among_those_of_others(case: str) -> None:
    workload, knobs = PHASES[case]
    check(workload, **{"mma_n": 32, "cluster_m": 1, "atoms_m": 1, **knobs})


def test_pixels_of_many_phases_are_left_to_a_permutation() -> None:
    """Each of them would be a store of its own."""
    assert SKETCH.matches(gradient(4, 16), H200) and not SKETCH.matches(gradient(5, 15), H200)


def test_results_of_16_bits_are_stored_where_rows_have_whole_vectors() -> None:
    """Eight of them from registers are half a sector of memory. Others are left to a permutation."""
    assert implicit_gemm_of(conv()) is None and implicit_gemm_of(conv(), along_n=False) is not None
    assert SKETCH.matches(conv(), H200) and not SKETCH.matches(conv(result="float16"), H200)
    whole = conv(result="float16", width=16)
    assert SKETCH.matches(whole, H200) and not SKETCH.matches(
        conv(result="float16", width=16, residual=True, filters=19), H200
    )
    stored = [
        stores_of(SKETCH.lower(whole, H200, legal_schedule_of(SKETCH, whole, epilogue_stages=n)).body) for n in (0, 1)
    ]
    lanes = [max(s.value.lanes for s in stores if s.buffer.name == "Y") for stores in stored]
    assert lanes == [1, 8]


def test_no_registers_are_spilled() -> None:
    cases: tuple[dict[str, Any], ...] = (
        {"filters": 128},
        {"filters": 256, "shuffle": 2},
        {"filters": 128, "width": 128, "result": "float16", "residual": True},
    )
    for parameters in cases:
        workload = conv(**{"batch": 16, "channels": 64, "height": 126, "width": 126, **parameters})
        _assert_no_spills(workload)


def test_no_registers_are_spilled_where_phases_lie_between_pixels() -> None:
    _assert_no_spills(gradient(2, 112, filters=128))


def _assert_no_spills(workload: Workload) -> None:
    kernel = SKETCH.lower(workload, H200, schedule_of(SKETCH, workload))
    (resources,) = build_kernel(kernel, H200).resources.values()
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0
