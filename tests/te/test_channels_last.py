"""Convolutions with channels first in steps: which decompositions there are, and that each computes the convolution."""

from dataclasses import replace
from typing import Any

import pytest

from tests.sketch_agreement import agree
from tests.te.steps import run_steps
from tilewright.core.streams import stream
from tilewright.ir.expr import Binary, Expr
from tilewright.te import build as te
from tilewright.te.channels_last import channels_last_steps
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.text import workload_text
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

RANKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "conv1d": (("length",), ("kernel",)),
    "conv2d": (("height", "width"), ("kernel_h", "kernel_w")),
    "conv3d": (("depth", "height", "width"), ("kernel_d", "kernel_h", "kernel_w")),
    "conv2d_transpose": (("height", "width"), ("kernel_h", "kernel_w")),
}


def _names(workload: Workload) -> list[str]:
    return [name for name, _ in channels_last_steps(workload)]


def _assert_steps_agree(workload: Workload) -> list[str]:
    """Every decomposition computes the workload. Its steps hand on no more than they must; their names."""
    inputs = random_inputs(workload, 1)
    wanted, limits, found = reference(workload, inputs), tolerance(workload), channels_last_steps(workload)
    for name, steps in found:
        assert steps[-1].output_buffers == workload.output_buffers
        read = {b.name for step in steps for b in step.inputs}
        assert all(step.outputs[0] in read for step in steps[:-1]), name
        assert set().union(*(step.constants for step in steps)) == workload.constants
        agree(name, run_steps(steps, inputs), wanted, limits)
    return [name for name, _ in found]


def _random_convolution(seed: int) -> Workload:
    """A convolution of few elements, with channels first and any other parameters."""
    draw = stream(seed, "convolution")

    def choice(*things: Any) -> Any:
        return things[int(draw.integers(len(things)))]

    operator = choice(*RANKS)
    extents, kernels = RANKS[operator]
    groups = choice(1, 1, 1, 2, 3)
    sizes = {name: choice(7, 8, 11) for name in extents} | {name: choice(1, 2, 3) for name in kernels}
    parameters = {
        **sizes,
        "batch": choice(1, 2),
        "channels": groups * choice(1, 2, 3, 5, 8),
        "filters": groups * choice(1, 2, 6),
        "stride": choice(1, 2, 3),
        "padding": choice(0, 0, 1, 2),
        "dilation": choice(1, 1, 2),
        "groups": groups,
        "dtype": choice("float16", "bfloat16", "float32", "float64", "int8", "int32"),
        "bias": choice(False, True),
        "residual": choice(False, True),
        "activation": choice("none", "relu"),
    }
    return OPERATORS[operator].workload(parameters)


@pytest.mark.parametrize("block", range(12))
def test_steps_of_random_convolutions_compute_them(block: int) -> None:
    found = set[str]()
    for seed in range(12 * block, 12 * block + 12):
        workload = _random_convolution(seed)
        try:
            found |= set(_assert_steps_agree(workload))
        except Exception as error:
            error.add_note(workload_text(workload))
            raise
    assert found


def _conv(**parameters: Any) -> Workload:
    sizes = {"batch": 2, "channels": 8, "height": 6, "width": 11, "filters": 4, "kernel_h": 3, "kernel_w": 3}
    return OPERATORS["conv2d"].workload({**sizes, "dtype": "float16", **parameters})


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({}, ["channels_last"]),
        ({"bias": True, "activation": "silu"}, ["channels_last"]),
        ({"residual": True}, ["channels_last", "channels_last_sums"]),
        ({"width": 18}, ["channels_last_in", "channels_last"]),  # rows of 16 results
        ({"width": 18, "channels": 1}, ["channels_last"]),
        ({"dtype": "int8"}, ["channels_last_in", "channels_last"]),
        ({"dtype": "float32", "residual": True}, ["channels_last_in", "channels_last", "channels_last_sums"]),
        ({"kernel_h": 2, "kernel_w": 2, "stride": 2}, ["patches", "channels_last"]),
        ({"kernel_h": 1, "kernel_w": 1, "stride": 2, "groups": 2}, ["patches", "channels_last"]),
        ({"groups": 8, "filters": 8}, []),  # depthwise
        ({"layout": "NHWC"}, []),
        ({"layout": "NHWC", "filters_first": True}, []),
    ],
)
def test_which_decompositions_there_are(parameters: dict[str, Any], wanted: list[str]) -> None:
    workload = _conv(**parameters)
    assert _names(workload) == wanted
    assert _assert_steps_agree(workload) == wanted


def test_factors_may_stand_in_any_order() -> None:
    sizes = {"batch": 2, "channels": 3, "height": 3, "width": 5, "filters": 2, "kernel_h": 4, "kernel_w": 4}
    workload = OPERATORS["conv2d_transpose"].workload({**sizes, "stride": 2, "padding": 1, "dtype": "float32"})
    *before, total = workload.stages
    assert isinstance(total.body, Binary)
    turned = replace(workload, stages=(*before, replace(total, body=total.body.b * total.body.a)))
    copied = [[step.outputs for step in steps] for w in (workload, turned) for _, steps in channels_last_steps(w)]
    inputs = [("X_channels_last",), ("W_channels_last",)]
    assert copied == [[*inputs, ("Y",)], [*inputs, ("Y_channels_last",), ("Y",)]] * 2
    assert _assert_steps_agree(turned) == ["channels_last_in", "channels_last"]


@pytest.mark.parametrize(
    "text",
    [
        "A: float32[4, 5, 6]\nB: float32[7, 5]\nY[n, o, p] = sum over c < 5 of A[n, c, p] * B[o, c]",
        "A: float32[4, 5, 6]\nB: float32[4, 6, 7]\nY[b, i, j] = sum over k < 6 of A[b, i, k] * B[b, k, j]",
        "X: float32[4, 5, 6]\nY[n, p < 4] = sum over c < 5, s < 3 of X[n, c, p + s]",
        "X: float32[4, 5, 6]\nW: float32[5, 3]\nY[n, c, p < 4] = max over s < 3 of X[n, c, p + s] * W[c, s]",
    ],
)
def test_products_of_matrices_and_windows_without_filters_are_no_convolutions(text: str) -> None:
    assert _names(parse_workload(text)) == []


def test_a_step_is_written_for_each_tensor_that_lies_otherwise() -> None:
    ((_, steps),) = channels_last_steps(_conv(bias=True, constant_weights=True))
    images, filters, convolution, results = (workload_text(step).splitlines() for step in steps)
    assert images[1].startswith("X_channels_last[d0, d2, d3, d1] = X[d0, d1, d2, d3]")
    assert filters[1].startswith("W_channels_last[d0_2, d2_2, d3_2, d1_2] = W[d0_2, d1_2, d2_2, d3_2]")
    assert steps[1].constants == {"W"} and not steps[2].constants
    assert [line.split(":")[0] for line in convolution[:3]] == ["B", "X_channels_last", "W_channels_last"]
    assert results[1].startswith("Y[n_1_2, o_1_2, y_1_2, x_1_2] = Y_channels_last[n_1_2, y_1_2, x_1_2, o_1_2]")


@pytest.mark.parametrize(
    ("side", "wanted"),
    [
        (4, "X_patches[n, y, x, c, r, s] = X[n, c, y*4 + r, x*4 + s]"),
        (2, "X_patches[n, c, r, s, y, x] = X[n, c, r + y*2, s + x*2]"),
    ],
)
def test_patches_are_copied_along_what_is_contiguous(side: int, wanted: str) -> None:
    """A window of four floats of 16 bits sees 8 bytes of a row at once, and one of two does not."""
    workload = _conv(height=8, width=12, kernel_h=side, kernel_w=side, stride=side)
    patches, product = dict(channels_last_steps(workload))["patches"]
    assert workload_text(patches).splitlines()[1].startswith(wanted)
    assert product.output_buffers == workload.output_buffers
    assert _assert_steps_agree(workload)[0] == "patches"


def test_what_is_added_is_copied_once_and_only_where_it_lies_otherwise() -> None:
    """The residual is the image itself. A scale of each filter, [n, o, 1, 1], is read as it is."""
    x, w = te.placeholder((2, 4, 6, 5), "float16", "X"), te.placeholder((4, 4, 1, 3), "float16", "W")
    scale = te.placeholder((2, 4, 1, 1), "float16", "S")
    c, s = te.reduce_axis(4, "c"), te.reduce_axis(3, "s")

    def terms(n: Expr, o: Expr, y: Expr, z: Expr) -> te.Reduction:
        inside = te.all_of(z + s >= 1, z + s < 6)
        pixel = te.select(inside, x[n, c, y, z + s - 1], te.constant(0, "float16"))
        return te.sum(te.cast(pixel, "float32") * te.cast(w[o, c, 0, s], "float32"), axis=(c, s))

    total = te.compute((2, 4, 6, 5), terms, "total")

    def scaled(n: Expr, o: Expr, y: Expr, z: Expr) -> Expr:
        value = total[n, o, y, z] * te.cast(scale[n, o, 0, 0], "float32") + te.cast(x[n, o, y, z], "float32")
        return te.cast(value, "float16")

    workload = te.workload(te.compute((2, 4, 6, 5), scaled, "Y"))
    assert _assert_steps_agree(workload) == ["channels_last"]
    ((_, steps),) = channels_last_steps(workload)
    assert [step.outputs for step in steps] == [
        ("X_channels_last",),
        ("W_channels_last",),
        ("Y_channels_last",),
        ("Y",),
    ]


LINES = """\
X: float32[2, 3, 8]
W: float32[4, 3, 3]
T[n, o, p < 6] = sum over c < 3, s < 3 of X[n, c, p + s] * W[o, c, s]"""


def test_outputs_may_be_the_sums_and_functions_of_them() -> None:
    functions = "Y[n, o, p] = max(T[n, o, p], 0)\nZ[n, o, p] = Y[n, o, p] + T[n, o, p]    # output"
    both = parse_workload(f"{LINES}    # output\n{functions}")
    assert _assert_steps_agree(both) == ["channels_last_in", "channels_last"]
    turned = parse_workload(f"{LINES}\nY[p < 6, o < 4, n < 2] = exp(T[n, o, p])    # output")
    assert _assert_steps_agree(turned) == ["channels_last_in", "channels_last"]


def test_what_is_no_pointwise_function_of_the_sums_reads_them_with_channels_last() -> None:
    """Channels become pixels: the last step permutes and splits."""
    shuffled = parse_workload(f"{LINES}\nY[n, o < 2, p < 12] = T[n, o * 2 + p % 2, p // 2]    # output")
    assert _assert_steps_agree(shuffled) == ["channels_last_in", "channels_last_sums"]
    pooled = parse_workload(f"{LINES}\nY[n < 2, o < 4] = max over p < 6 of T[n, o, p]    # output")
    assert _names(pooled) == []


def _filter_gradient(results: str, stride: int, cast: bool) -> Workload:
    """Return the gradient of a convolution with channels last, 3 x 3 and padding 1, towards its filters."""
    ends = f"{stride} * y + r >= 1 and {stride} * x + s >= 1 and {stride} * y + r < 9 and {stride} * x + s < 9"
    at = ", ".join(f"{a} < 3" if a in "rs" else a for a in results)
    text = (
        f"D: float16[6, {8 // stride}, {8 // stride}, 5]\nX: float16[6, 8, 8, 7]\n"
        f"S[{at}] = sum over n < 6, y < {8 // stride}, x < {8 // stride} of float32(D[n, y, x, k]) * "
        f"select({ends}, float32(X[n, {stride} * y + r - 1, {stride} * x + s - 1, c]), 0.0)"
    )
    return parse_workload(text + f"\nG[{', '.join(results)}] = float16(S[{', '.join(results)}])" * cast)


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("results", ["krsc", "rsck", "kcrs", "rskc"])
def test_the_channels_of_a_gradient_towards_filters_are_its_images(results: str, stride: int, cast: bool) -> None:
    workload = _filter_gradient(results, stride, cast)
    assert "channels_last" in _assert_steps_agree(workload)
    *copies, sums, _ = dict(channels_last_steps(workload))["channels_last"]
    assert (7, 8, 8, 6) in [b.shape for step in copies for b in step.output_buffers]
    assert sums.output_buffers[0].shape == (7, 3, 3, 5)


def test_a_gradient_with_channels_first_is_one_of_copies_with_channels_last() -> None:
    workload = parse_workload(
        "D: float16[3, 5, 4, 4]\nX: float16[3, 7, 8, 8]\nS[k, c, r < 3, s < 3] = sum over n < 3, y < 4, x < 4 of "
        "float32(D[n, k, y, x]) * select(2 * y + r >= 1 and 2 * x + s >= 1 and 2 * y + r < 9 and 2 * x + s < 9, "
        "float32(X[n, c, 2 * y + r - 1, 2 * x + s - 1]), 0.0)\nG[k, c, r, s] = float16(S[k, c, r, s])"
    )
    assert "pixels_summed" in _assert_steps_agree(workload)
    *copies, sums = dict(channels_last_steps(workload))["pixels_summed"]
    assert [b.shape for step in copies for b in step.output_buffers] == [(3, 8, 8, 7), (3, 4, 4, 5)]
    assert sums.output_buffers[0].shape == (5, 7, 3, 3)


def test_no_pixels_are_summed_where_channels_are_last_or_numbers_are_not_first() -> None:
    assert not any("pixels_summed" in _names(_filter_gradient(order, 1, False)) for order in ("krsc", "kcrs"))
    assert "pixels_summed" not in _names(parse_workload(LINES))
