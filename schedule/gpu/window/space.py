"""Small windows over neighbouring pixels for graphics processors: pooling, depthwise convolution; channels innermost.

A thread computes ``vector`` channels of ``rows`` by ``run`` neighbouring outputs. It takes every pixel that those need
into registers once, all loads under way before the first is needed, and goes through the rows: each pixel is added to
every output whose window it is in, and a row of outputs is written when its last row of pixels is done::

    x_held[row, k, :] = X[y0 + row, x0 + k, channels]        # all rows and columns; zeros where the padding is
    weights_held = W[…]                                      # whole window, one vector of channels
    for each input row, for p in unrolled(run), s in unrolled(window):
        total[q, p, :] += x_held[row, stride*p + dilation*s, :] * weights_held[r, s, :]
        Y[y0 + q, x0 + p, channels] = epilogue(total[q, p, :])                    # of rows q that are complete

Where a row of pixels adds the same to every row of outputs (pooling), it is added up by itself first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue, Schedule
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.window import Windows, windows_of
from ...space.columns import Bools, Columns, Ints, codes_of
from ...space.enumerate import grid_codes
from ...space.knob import Knob, Quantity
from ...tile_sketch import Plan, TileSketch
from ..occupancy import MOST_BLOCKS, limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from .kernel import window_kernel

MAX_VECTOR_BYTES = 8
SPARE_REGISTERS = 15
"""Registers for addresses and constants, roughly (from compiled kernels)."""
MAX_REGISTERS = 200
FEWEST_OUTPUTS, MOST_OUTPUTS = 16, 112
"""Output elements of a thread, where there are enough of them (measured: the best settings have so many)."""
WASTE = 1.25
"""How many more outputs along an axis threads may have room for than there are."""
BUSY_THREADS = 512
"""Threads that keep a multiprocessor busy."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("vector_bytes", "B", "widest access of the windowed input"),
    Quantity("outputs", "elements", "outputs that a thread computes for each of its channels"),
    Quantity("loads_per_output", "loads", "input elements loaded for each output element"),
)


@dataclass(frozen=True)
class WindowsPlan(Plan):
    """The settings of ``windows`` on a target."""

    windows: Windows
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        width, height = self.windows.column.axis.extent, self.windows.rows
        return (
            Knob("vector", self._vectors(), "neighbouring channels that a thread computes"),
            Knob("run", tuple(r for r in (1, 2, 4, 7, 8) if r <= width), "neighbouring outputs of a thread in a row"),
            Knob("rows", tuple(q for q in (1, 2, 4, 7, 8) if q <= height), "rows of outputs of a thread"),
            Knob("threads", (64, 128, 256), "threads of a block"),
        )

    def _vectors(self) -> tuple[int, ...]:
        """Vectors of 4 and 8 bytes of the input, where they fit. (Measured: wider ones leave fewer threads with more
        registers each, and are slower.)"""
        size, channels = self._moving_bytes, self.windows.channel.extent
        fitting = [v for v in (1, 2, 4, 8) if channels % v == 0 and (v == 1 or v * size <= MAX_VECTOR_BYTES)]
        return tuple(v for v in fitting if v * size >= 4 or v == fitting[-1])

    @property
    def _moving_bytes(self) -> int:
        """Of one element of each of the inputs that windows move over."""
        return sum(r.load.dtype.bytes for r in self.windows.moving)

    def _sizes(self, columns: Columns) -> tuple[Ints, Ints, Ints]:
        """Threads in all, pixels that a thread holds, and registers of a thread."""
        w = self.windows
        vector, run, rows = columns.ints("vector"), columns.ints("run"), columns.ints("rows")
        shares = {w.channel: vector, w.column.axis: run} | ({w.row.axis: rows} if w.row is not None else {})
        number = np.ones(len(columns), np.int64)
        for axis in w.axes:
            number *= -(-axis.extent // shares.get(axis, 1))
        pixels = w.column.positions(run) * (w.row.positions(rows) if w.row is not None else 1)
        weights = sum(r.load.dtype.bytes * prod(a.extent for a in w.window_of(r)) for r in w.fixed)
        # Rows of outputs that are complete are written at once.
        totals = (
            max(4, w.reduction.tensor.dtype.bytes) * run * np.minimum(rows, w.row.points if w.row is not None else 1)
        )
        words = -(-(self._moving_bytes * pixels + weights + totals) * vector // 4)
        return number, pixels, SPARE_REGISTERS + words + w.column.points * vector

    def legal(self, columns: Columns) -> Bools:
        sensible = self._sensible(columns)
        if self._sensible(Columns(self.knobs, grid_codes(self.knobs), {})).any():
            return sensible
        smallest = columns.flags("run", 1) & columns.flags("rows", 1) & columns.flags("threads", 64)
        return smallest & columns.flags("vector", self._vectors()[0])

    def _sensible(self, columns: Columns) -> Bools:
        run, rows, threads = columns.ints("run"), columns.ints("rows"), columns.ints("threads")
        number, _, registers = self._sizes(columns)
        width, height = self.windows.column.axis.extent, self.windows.rows
        wasteful = (-(-width // run) * run > WASTE * width) | (-(-height // rows) * rows > WASTE * height)
        # Threads with few outputs load most pixels again; they are worth it where there are few outputs in all.
        outputs = run * rows * columns.ints("vector")
        few = prod(a.extent for a in self.windows.axes) < FEWEST_OUTPUTS * BUSY_THREADS * self.target.threads
        alone = (rows == 1) & (height > 1 and not few)
        share = (outputs <= MOST_OUTPUTS) & ((outputs >= FEWEST_OUTPUTS) | few) & ~alone
        busy = (number >= threads * self.target.threads) | (outputs <= FEWEST_OUTPUTS)
        possible = ((number > 64) | (threads == 64)) & (number <= MOST_BLOCKS * threads)
        sensible: Bools = (registers <= MAX_REGISTERS) & ~wasteful & share & busy & possible
        return sensible

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        vector, run, rows = columns.ints("vector"), columns.ints("run"), columns.ints("rows")
        number, pixels, registers = self._sizes(columns)
        blocks = -(-number // columns.ints("threads"))
        widest = max(r.load.dtype.bytes for r in self.windows.moving)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=blocks,
            threads=columns.ints("threads"),
            registers=registers,
            shared=np.zeros_like(blocks),
            wanted=self._moving_bytes * vector * pixels,
        )
        return {
            **common,
            "vector_bytes": np.minimum(vector * widest, MAX_VECTOR_BYTES).astype(np.float64),
            "outputs": (run * rows).astype(np.float64),
            "loads_per_output": pixels / (run * rows),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        columns = Columns(self.knobs, codes_of(self.knobs, [Schedule.of("", 0, setting)]), {})
        _, _, registers = self._sizes(columns)
        resident = limits_of(self.target).resident_blocks(columns.ints("threads"), registers, 0)
        return window_kernel(self.windows, setting, int(resident[0]))


def _plan(workload: Workload, target: Target) -> WindowsPlan | None:
    windows = windows_of(workload)
    return None if windows is None else WindowsPlan(windows, target)


CUDA_WINDOW = TileSketch("cuda_window", 3, QUANTITIES, _plan)
