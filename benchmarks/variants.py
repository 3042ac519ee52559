"""Few schedules that between them have every value of a sketch's knobs, on products and convolutions of every kind, and
on attention."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Target
from tilewright.schedule.sketch import Sketch
from tilewright.schedule.sketches import SKETCHES
from tilewright.schedule.space.space import Space
from tilewright.te.operators import OPERATORS

MOST_VALUES = 6
"""Of knobs with more values, such as widths of tiles, any will do."""

PRODUCTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bias, residual, gelu": (
        "linear",
        {"rows": 2304, "inputs": 320, "outputs": 2304, "residual": True, "activation": "gelu_tanh", "dtype": "float16"},
    ),
    "rows along m and n": ("matmul", {"m": 328, "n": 200, "k": 520, "transpose_a": True, "dtype": "float16"}),
    "rows along k and n": ("matmul", {"m": 520, "n": 328, "k": 200, "dtype": "bfloat16"}),
    "rows along m and k, results that boxes do not take": (
        "matmul",
        {"m": 136, "n": 81, "k": 72, "transpose_a": True, "transpose_b": True, "dtype": "bfloat16"},
    ),
    "long sums": ("matmul", {"m": 128, "n": 1024, "k": 2048, "transpose_b": True, "dtype": "float16"}),
    "batch": ("batch_matmul", {"batch": 3, "m": 200, "n": 264, "k": 136, "transpose_b": True, "dtype": "float16"}),
    "rows in groups": (
        "grouped_matmul",
        {"groups": 7, "m": 520, "n": 328, "k": 200, "skew": 1.0, "bias": True, "dtype": "bfloat16"},
    ),
    "two sums": ("gated_linear", {"rows": 264, "inputs": 200, "outputs": 320, "dtype": "bfloat16"}),
    "statistics of rows": ("mlp", {"rows": 40, "width": 128, "layers": 2, "dtype": "float16"}),
    "some rows": ("linear", {"rows": 33, "inputs": 520, "outputs": 1288, "dtype": "float16"}),
    "few rows": ("linear", {"rows": 2, "inputs": 2056, "outputs": 1288, "dtype": "bfloat16"}),
    "few rows that begin anywhere": ("linear", {"rows": 9, "inputs": 1001, "outputs": 667, "dtype": "float16"}),
    "few rows that begin anywhere along n": ("matmul", {"m": 20, "n": 667, "k": 600, "dtype": "bfloat16"}),
    "few rows along m that begin anywhere": (
        "matmul",
        {"m": 20, "n": 667, "k": 601, "transpose_a": True, "dtype": "bfloat16"},
    ),
    "few rows in TF32": ("matmul", {"m": 20, "n": 135, "k": 200, "precision": "tf32"}),
    "few rows of float32 in parts": ("matmul", {"m": 20, "n": 136, "k": 200, "precision": "tf32x3"}),
    "rows along k and n, TF32": ("matmul", {"m": 520, "n": 328, "k": 200, "precision": "tf32"}),
    "causal attention": (
        "attention",
        {"heads": 8, "queries": 500, "keys": 520, "depth": 128, "causal": True, "dtype": "float16"},
    ),
    "attention of all to all": (
        "attention",
        {"heads": 50, "queries": 300, "keys": 200, "depth": 64, "dtype": "bfloat16"},
    ),
    "attention of few": (
        "attention",
        {"heads": 4, "queries_per_key": 2, "queries": 8, "keys": 4200, "depth": 64, "dtype": "bfloat16"},
    ),
    "convolution": (
        "conv2d",
        {
            **{"batch": 4, "channels": 136, "height": 16, "width": 8, "filters": 200, "kernel_h": 3, "kernel_w": 3},
            **{"padding": 1, "bias": True, "residual": True, "layout": "NHWC", "dtype": "float16"},
        },
    ),
    "convolution, strided, groups": (
        "conv2d",
        {
            **{"batch": 2, "channels": 128, "height": 15, "width": 17, "filters": 64, "kernel_h": 3, "kernel_w": 3},
            **{"padding": 2, "stride": 2, "dilation": 2, "groups": 4, "layout": "NHWC", "dtype": "bfloat16"},
        },
    ),
    "convolution, groups of few channels": (
        "conv2d",
        {
            **{"batch": 4, "channels": 128, "height": 16, "width": 8, "filters": 128, "kernel_h": 3, "kernel_w": 3},
            **{"padding": 1, "groups": 32, "bias": True, "layout": "NHWC", "dtype": "float16"},
        },
    ),
    "convolution, transposed": (
        "conv2d_transpose",
        {
            **{"batch": 4, "channels": 72, "height": 8, "width": 8, "filters": 96, "kernel_h": 4, "kernel_w": 4},
            **{"padding": 1, "stride": 2, "layout": "NHWC", "dtype": "float16"},
        },
    ),
    "convolution, few channels": (
        "conv2d",
        {
            **{"batch": 2, "channels": 3, "height": 32, "width": 32, "filters": 72, "kernel_h": 7, "kernel_w": 7},
            **{"padding": 3, "stride": 2, "layout": "NHWC", "dtype": "float16"},
        },
    ),
    "convolution, few channels in planes": (
        "conv2d",
        {
            **{"batch": 3, "channels": 3, "height": 48, "width": 64, "filters": 72, "kernel_h": 16, "kernel_w": 16},
            **{"stride": 16, "layout": "NHWC", "dtype": "bfloat16"},
        },
    ),
    "convolution, TF32, packed": (
        "conv2d",
        {
            **{"batch": 2, "channels": 48, "height": 12, "width": 16, "filters": 72, "kernel_h": 3, "kernel_w": 3},
            **{"padding": 1, "bias": True, "layout": "NHWC", "dtype": "float32", "precision": "tf32"},
        },
    ),
    "convolution, TF32, groups of few channels": (
        "conv2d",
        {
            **{"batch": 2, "channels": 64, "height": 8, "width": 16, "filters": 64, "kernel_h": 3, "kernel_w": 3},
            **{"padding": 1, "groups": 16, "layout": "NHWC", "dtype": "float32", "precision": "tf32"},
            **{"filters_first": True},
        },
    ),
    "convolution, TF32, few channels": (
        "conv2d",
        {
            **{"batch": 2, "channels": 3, "height": 32, "width": 32, "filters": 72, "kernel_h": 7, "kernel_w": 7},
            **{"padding": 3, "stride": 2, "layout": "NHWC", "dtype": "float32", "precision": "tf32"},
        },
    ),
    "convolution, 8-bit integers": (
        "conv2d",
        {
            **{"batch": 2, "channels": 144, "height": 8, "width": 16, "filters": 72, "kernel_h": 3, "kernel_w": 3},
            **{"padding": 1, "layout": "NHWC", "dtype": "int8", "filters_first": True},
        },
    ),
    "TF32, packed": ("matmul", {"m": 136, "n": 200, "k": 72, "transpose_a": True, "precision": "tf32"}),
    "float32 in parts": ("matmul", {"m": 136, "n": 200, "k": 72, "transpose_b": True, "precision": "bf16x6"}),
    "8-bit floats, scales of blocks": ("scaled_matmul", {"m": 136, "n": 264, "k": 400, "scales": "block"}),
    "8-bit integers": ("scaled_matmul", {"m": 136, "n": 200, "k": 272, "zero_points": True, "dtype": "int8"}),
    "odd rows in TF32": ("matmul", {"m": 101, "n": 113, "k": 99, "transpose_b": True, "precision": "tf32"}),
    "odd rows": ("matmul", {"m": 101, "n": 113, "k": 99, "dtype": "float16"}),
}
"""What is special -> operator and parameters: several tiles each, quickly checked."""


@dataclass(frozen=True)
class Variant:
    """``has``: the knobs that no variant before it of the sketch set to these values."""

    case: str
    operator: str
    parameters: Mapping[str, Any]
    schedule: Schedule
    has: Mapping[str, KnobValue]


def variants(sketch: Sketch, target: Target) -> list[Variant]:
    """Return one schedule at least for each of ``PRODUCTS`` that the sketch takes, and for every value of a knob with
    few of them that occurs in their spaces; none where it takes no product."""
    taken = spaces_of_products(sketch.name, target)
    spaces = list(taken.values())
    had: set[tuple[str, KnobValue]] = set()
    found = []
    for place, row in _chosen(spaces, had):
        schedule = spaces[place].schedule(row)
        few = {k.name for k in spaces[place].knobs if len(k.values) <= MOST_VALUES}
        has = {name: value for name, value in schedule.knobs if name in few and (name, value) not in had}
        had |= set(has.items())
        case = list(taken)[place]
        found.append(Variant(case, *PRODUCTS[case], schedule, has))
    return found


@lru_cache(maxsize=1)
def spaces_of_products(name: str, target: Target) -> Mapping[str, Space]:
    """Return the space of each of ``PRODUCTS`` that a sketch takes, by the product's name."""
    sketch = SKETCHES[name]
    workloads = {case: OPERATORS[operator].workload(parameters) for case, (operator, parameters) in PRODUCTS.items()}
    return {case: sketch.space(work, target) for case, work in workloads.items() if sketch.matches(work, target)}


def _chosen(spaces: Sequence[Space], had: set[tuple[str, KnobValue]]) -> Iterator[tuple[int, int]]:
    """(number of a space, row in it), those that have most of what is not in ``had`` yet; one of each space first."""
    for place, space in enumerate(spaces):
        yield place, int(_news(space, had).argmax())
    while spaces:
        news = [_news(space, had) for space in spaces]
        place = int(np.argmax([n.max() for n in news]))
        if not news[place].max():
            return
        yield place, int(news[place].argmax())


def _news(space: Space, had: set[tuple[str, KnobValue]]) -> NDArray[np.int64]:
    """For each row, how many of its knobs have a value that is not in ``had``."""
    found = np.zeros(len(space), dtype=np.int64)
    for place, knob in enumerate(space.knobs):
        if len(knob.values) <= MOST_VALUES:
            new = np.array([(knob.name, value) not in had for value in knob.values])
            found += new[space.codes[:, place]]
    return found
