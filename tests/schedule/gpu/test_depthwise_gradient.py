"""Gradients of depthwise convolutions towards filters: which match, what kernels compute, what the compiler says."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.gpu.tiles import (
    EVERY_LEGAL,
    H200,
    assert_agrees,
    assert_schedule_agrees,
    legal_schedule_of,
)
from tilewright.codegen.lowering import build
from tilewright.core.streams import stream
from tilewright.ir.stmt import Launch, walk_statements
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.depthwise_gradient.space import CUDA_DEPTHWISE_WGRAD as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload


def gradient(
    height: int = 8,
    width: int = 8,
    channels: int = 16,
    kernel: tuple[int, int] = (3, 3),
    *,
    last: bool = True,
    images: int = 2,
    stride: int = 1,
    dilation: int = 1,
    padding: int | None = None,
    dtype: str = "float16",
    result: str = "",
) -> Workload:
    """Return the gradient of a convolution of which ``height`` by ``width`` pixels are the result. Without a
    ``padding`` the image has as many pixels as all windows see."""
    counts = height, width
    seen = [f"{stride} * {p} + {dilation} * {t} - {padding or 0}" for p, t in ("yr", "xs")]
    if padding is None:
        sizes = [(n - 1) * stride + (k - 1) * dilation + 1 for n, k in zip(counts, kernel, strict=True)]
    else:
        sizes = [n * stride for n in counts]
    inside = " and ".join(f"{i} >= 0 and {i} < {n}" for i, n in zip(seen, sizes, strict=True))

    def shape(n: object, c: object, rows: object, columns: object) -> str:
        return f"{n}, {rows}, {columns}, {c}" if last else f"{n}, {c}, {rows}, {columns}"

    image = f"float32(I[{shape('n', 'c', *seen)}])"
    text = (
        f"D: {dtype}[{shape(images, channels, *counts)}]\nI: {dtype}[{shape(images, channels, *sizes)}]\n"
        f"G[c < {channels}, r < {kernel[0]}, s < {kernel[1]}] = sum over n < {images}, y < {height}, x < {width} of "
        f"float32(D[{shape('n', 'c', 'y', 'x')}]) * "
        + (image if padding is None else f"select({inside}, {image}, 0.0)")
    )
    return parse_workload(text + f"\nZ[c, r, s] = {result}(G[c, r, s] * 2)" * bool(result))


def lines(taps: int, channels: int = 16, *, last: bool = True) -> Workload:
    """Return the gradient of a convolution along lines of 50 pixels."""
    d, i = (f"float16[2, {n}, {channels}]" if last else f"float16[2, {channels}, {n}]" for n in (50, 49 + taps))
    here, seen = ("n, x, c", "n, x + s, c") if last else ("n, c, x", "n, c, x + s")
    factors = f"float32(I[{seen}]) * float32(D[{here}])"
    head = f"D: {d}\nI: {i}\nG[s < {taps}, c < {channels}] = "
    return parse_workload(head + f"sum over n < 2, x < 50 of {factors}")


CASES: dict[str, Callable[[], Workload]] = {
    "channels last": gradient,
    "columns last": lambda: gradient(last=False, channels=3),
    "padded": lambda: gradient(10, 8, padding=1),
    "padded, columns last": lambda: gradient(8, 16, 4, padding=1, last=False),
    "odd rows": lambda: gradient(9, 11, 6, last=False, kernel=(5, 5)),
    "strides": lambda: gradient(7, 8, stride=2, padding=1, dtype="bfloat16", result="bfloat16"),
    "strides, columns last": lambda: gradient(8, 7, 4, stride=2, padding=1, last=False),
    "dilated": lambda: gradient(8, 9, 12, dilation=2),
    "dilated, columns last": lambda: gradient(8, 9, 2, dilation=2, last=False),
    "7 x 7": lambda: gradient(9, 10, 8, (7, 7), padding=3),
    "3 x 5": lambda: gradient(9, 12, 4, (3, 5), last=False, result="float16"),
    "float32": lambda: gradient(dtype="float32", padding=1),
    "float32, columns last": lambda: gradient(dtype="float32", last=False, channels=4),
    "lines": lambda: lines(31),
    "lines, columns last": lambda: lines(31, 3, last=False),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = CASES[case]()
    assert SKETCH in sketches_for(workload, H200)
    assert assert_agrees(SKETCH, workload, 1) == 1
    assert assert_agrees(SKETCH, workload, 4, policy=EVERY_LEGAL) == 4


@pytest.mark.parametrize("last", [True, False])
def test_what_beyond_the_last_tile_and_channel_is_adds_nothing(last: bool) -> None:
    workload = gradient(9, 10, 20, last=last)
    knobs = {"vector_width": 4, "threads_x": 8} if last else {}
    schedule = legal_schedule_of(SKETCH, workload, tile_w=4, tile_h=4, rounds=1, **knobs)
    assert_schedule_agrees(SKETCH, workload, schedule)


@pytest.mark.parametrize("case", ["padded, columns last", "3 x 5", "odd rows", "many columns", "nine rows"])
def test_matrix_instructions_multiply_rows(case: str) -> None:
    """Also where rows of images are no whole vectors, where tiles reach beyond the last row and column, and where
    several warps have tiles of one channel."""
    cases = {
        "many columns": lambda: gradient(17, 36, 2, (7, 7), padding=3, last=False, images=3, dtype="bfloat16"),
        "nine rows": lambda: gradient(16, 16, 2, (9, 2), last=False),
    }
    workload = (CASES | cases)[case]()
    space = SKETCH.space(workload, H200, policy=EVERY_LEGAL)
    rows = np.flatnonzero(space.column("mma") == 1)
    assert len(rows) >= 16
    for row in stream(1, "rows").permutation(rows)[:3]:
        assert_schedule_agrees(SKETCH, workload, space.schedule(int(row)))


def test_no_matrix_instruction_takes_other_windows() -> None:
    taken = gradient(8, 16, 4, padding=1, last=False)
    others = [
        gradient(),
        gradient(last=False, dtype="float32"),
        gradient(last=False, stride=2),
        gradient(last=False, dilation=2),
        gradient(9, 9, 2, (10, 3), last=False),
        gradient(9, 9, 2, (1, 3), last=False),
    ]
    names = [{knob.name for knob in SKETCH.space(w, H200).knobs} for w in (taken, *others)]
    assert ["mma" in n for n in names] == [True, *[False] * len(others)]


@pytest.mark.parametrize(("images", "launches"), [(1, 1), (64, 2)])
def test_a_second_launch_adds_up_what_several_blocks_have(images: int, launches: int) -> None:
    workload = gradient(images=images)
    schedule = legal_schedule_of(SKETCH, workload, tile_w=8, tile_h=4, rounds=1, threads=128, threads_x=8)
    kernel = SKETCH.lower(workload, H200, schedule)
    assert sum(isinstance(s, Launch) for s in walk_statements(kernel.body)) == launches
    assert_schedule_agrees(SKETCH, workload, schedule)


def test_what_it_leaves_to_others() -> None:
    """A product of all channels is a product of matrices, and one with the channel itself no convolution. Without
    channels no lanes have anything to do."""
    inputs = "D: float16[2, 8, 8, 16]\nI: float16[2, 10, 10, 16]\n"
    sums = "sum over n < 2, y < 8, x < 8 of"
    for text in (
        f"{inputs}G[c, d < 16, r < 3, s < 3] = {sums} float32(D[n, y, x, c]) * float32(I[n, y + r, x + s, d])",
        f"{inputs}G[c, r < 3, s < 3] = {sums} float32(D[n, y, x, c]) + float32(I[n, y + r, x + s, c])",
        f"{inputs}G[c, r < 3, s < 3] = {sums} float32(D[n, y, x, c]) * max(float32(I[n, y + r, x + s, c]), 0.0)",
        f"{inputs}G[c, r < 3] = {sums} float32(D[n, y, x, c]) * float32(I[n, y + r, x + r, c])",
        f"{inputs}G[c] = {sums} float32(D[n, y, x, c]) * float32(I[n, y, x, c])",
        "D: float32[2, 8]\nI: float32[2, 12]\nG[r < 5] = sum over n < 2, y < 8 of D[n, y] * I[n, y + r]",
    ):
        assert not SKETCH.matches(parse_workload(text), H200)
    assert not SKETCH.matches(lines(75), H200)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("size", "channels", "kernel"), [(56, 128, 3), (28, 240, 5), (56, 96, 7)])
def test_default_kernels_keep_to_registers(size: int, channels: int, kernel: int, last: bool) -> None:
    workload = gradient(size, size, channels, (kernel, kernel), last=last, images=32)
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == SKETCH.name
    resources = build(workload, H200, schedule).resources
    assert all((r.spill_bytes, r.stack_bytes) == (0, 0) for r in resources.values())


@pytest.mark.parametrize("tile_w", [4, 8])
def test_kernels_of_matrix_instructions_keep_to_registers(tile_w: int) -> None:
    workload = gradient(56, 56, 96, (7, 7), padding=3, last=False, images=32)
    for ctas_per_sm in (4, 5, 6):
        schedule = legal_schedule_of(
            SKETCH, workload, mma=1, tile_w=tile_w, tile_h=56, ctas_per_sm=ctas_per_sm - tile_w // 8
        )
        resources = build(workload, H200, schedule).resources
        assert all((r.spill_bytes, r.stack_bytes) == (0, 0) for r in resources.values())
