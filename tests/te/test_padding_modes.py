"""Convolutions of images that are padded by what stands in them: their steps compute them."""

import pytest

from tests.sketch_agreement import agree
from tests.te.steps import run_steps
from tilewright.te.data import random_inputs
from tilewright.te.padding_modes import padded_steps
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

MODES = {
    "replicated": "min(max({} - 1, 0), 7)",
    "reflected": "min(max(7 - abs(7 - abs({} - 1)), 0), 7)",
    "circular": "({} + 7) % 8",
    "enlarged": "({} + 1) // 2",
}


def _convolution(mode: str, *, first: bool = False, stride: int = 1, guard: str = "") -> Workload:
    size = 8 // stride
    row, column = (MODES[mode].format(f"({a} * {stride} + {b})") for a, b in ("yr", "xs"))
    image, filters = ("2, 8, 8, 8", "4, 8, 3, 3") if first else ("2, 8, 8, 8", "4, 3, 3, 8")
    read, taps = (f"n, c, {row}, {column}", "o, c, r, s") if first else (f"n, {row}, {column}, c", "o, r, s, c")
    x = f"float32(X[{read}])"
    return parse_workload(
        f"X: float16[{image}]\nW: float16[{filters}]\n"
        f"S[{f'n, o, y < {size}, x < {size}' if first else f'n, y < {size}, x < {size}, o'}] = sum over r < 3, s < 3, "
        f"c < 8 of {f'select({guard}, {x}, 0.0)' if guard else x} * float32(W[{taps}])\n"
        f"Y[i, j, k, l] = float16(max(S[i, j, k, l], 0.0))"
    )


def _assert_agree(workload: Workload) -> list[int]:
    inputs, found = random_inputs(workload, 1), padded_steps(workload)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    for name, steps in found:
        agree(name, run_steps(steps, inputs), wanted, limits)
    return [len(steps) for _, steps in found]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_steps_compute_the_convolution(mode: str, stride: int) -> None:
    assert _assert_agree(_convolution(mode, stride=stride)) == [2]
    steps = dict(padded_steps(_convolution(mode)))["padded"]
    assert [b.shape for b in steps[0].output_buffers] == [(2, 10, 10, 8)]


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_with_channels_last_pads(mode: str) -> None:
    """Images, filters, sums or results are the others."""
    counts = _assert_agree(_convolution(mode, first=True))
    assert counts[0] == 2 and set(counts[1:]) <= {3, 4} and len(counts) > 1


def test_what_conditions_leave_out_is_not_padded() -> None:
    inside = "y + r >= 1 and x + s >= 1 and y + r < 9 and x + s < 9"
    row, column = "(y + r - 1) // 2", "(x + s - 1) // 2"
    workload = parse_workload(
        "X: float32[2, 4, 4, 8]\nW: float32[3, 3, 8, 4]\nY[n, y < 8, x < 8, o] = sum over r < 3, s < 3, c < 8 of "
        f"select({inside}, X[n, {row}, {column}, c], 0.0) * W[r, s, c, o]"
    )
    assert _assert_agree(workload) == [2]
    steps = dict(padded_steps(workload))["padded"]
    assert [b.shape for b in steps[0].output_buffers] == [(2, 8, 8, 8)]


@pytest.mark.parametrize(
    "text",
    [
        "X: float32[8, 4]\nW: float32[3, 4]\nY[y < 6, o < 4] = sum over r < 3 of X[y + r, 0] * W[r, o]",
        "X: float32[8]\nW: float32[3, 4]\nY[y < 8, o < 4] = sum over r < 3 of X[y % 4 + r] * W[r, o]",
        "X: float32[8]\nW: float32[3, 4]\nY[y < 8, o < 4] = max over r < 3 of X[(y + r) % 8] * W[r, o]",
        "X: float32[8]\nI: int32[3]\nW: float32[3, 4]\n"
        "Y[y < 8, o < 4] = sum over r < 3 of X[min(max(int64(I[r]) + y, 0), 7)] * W[r, o]",
    ],
    ids=["plain", "two sums", "no sum of products", "loaded"],
)
def test_other_workloads_are_no_such_convolution(text: str) -> None:
    assert padded_steps(parse_workload(text)) == []
