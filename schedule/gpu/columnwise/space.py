"""Column kernels for graphics processors: sums, means and positions over leading axes, with what is fused to them.

Threads walk down the reduced axes with a vector of columns each; parts of the reduction meet in a cluster or in a
second launch (``tile.column_program``). No atomics: results are the same bits every time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue, Schedule
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.columnwise import ColumnForm, column_form
from ...space.columns import Bools, Columns, Ints, codes_of
from ...space.knob import Knob, Quantity
from ...tile.accumulation import Accumulation
from ...tile_sketch import Plan, TileSketch
from ..occupancy import limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from .kernel import CLUSTER, LAUNCH, RUNS, TURNS, ColumnSetting, column_kernel

FEWEST_BLOCKS = 64
"""Fewer blocks leave most of the device idle."""
SMALL_POINTS = 1 << 22
"""Fewer points to reduce need no splitting."""
LEAST_UNDER_WAY = 2048
"""Vectors that a multiprocessor must have under way to keep memory busy: 32 KiB."""
MOST_BLOCKS_EACH = 8
"""Blocks of a multiprocessor: more parts only cost."""
MOST_SHARED_BYTES = 48 << 10
SPARE_REGISTERS = 20
"""Registers for addresses, roughly (from compiled kernels)."""
SHORT_RUN_BYTES = 64
"""What neighbouring threads read of a row at least, where there is so much: memory gives no less."""
NARROW = 8
"""Fewer threads along the columns are for so few columns that only then clusters, which meet without a second launch,
occupy the whole device."""
CLUSTERED = 5 / 6
"""Of all multiprocessors, those that clusters of 16 blocks can have: they do not cross parts of the chip (measured)."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("run_bytes", "B", "what a block reads of each row"),
    Quantity("thread_rows", "rows", "rows that a thread takes"),
    Quantity("parts", "parts", "parts of a column's reduction, in different blocks"),
    Quantity("part_bytes", "B", "what the parts leave in memory for a second launch, and it reads"),
)


@dataclass(frozen=True)
class ColumnPlan(Plan):
    workload: Workload
    target: Target
    form: ColumnForm

    @property
    def knobs(self) -> tuple[Knob, ...]:
        multiprocessors = self.target.threads
        splits = sorted({1, 2, 4, 8, 16, 32, *(multiprocessors * n // 2 for n in (1, 2, 4))})
        joins = (LAUNCH, CLUSTER) if limits_of(self.target).clusters else (LAUNCH,)
        return (
            Knob("vector", self._vectors(), "neighbouring columns of a thread"),
            Knob("width", (2, 4, 8, 16, 32, 64, 128), "threads of a block along the columns"),
            Knob("depth", (1, 2, 4, 8, 16, 32, 64, 128, 256), "threads of a block along the reduced axes"),
            Knob("unroll", (1, 4, 8), "rows that a thread has under way"),
            Knob("splits", tuple(splits), "parts of the reduced axes, in different blocks"),
            Knob("deal", (RUNS, TURNS), "rows of a part: neighbours, or taken in turns with the other parts"),
            Knob("join", joins, "where parts meet: in a second launch or in a cluster"),
        )

    def _vectors(self) -> tuple[int, ...]:
        """The widest vectors of up to 16 bytes that divide the columns."""
        widest = max(b.dtype.bytes for b in self.form.held)
        return (max(v for v in (1, 2, 4, 8, 16) if self.form.columns[-1] % v == 0 and (v * widest <= 16 or v == 1)),)

    @property
    def _state_bytes(self) -> int:
        hows = [Accumulation(r.reducer, r.body.dtype, r.tensor.dtype) for r in self.form.reductions]
        return sum(d.bytes for how in hows for d in how.dtypes)

    def _sizes(self, c: Columns) -> "_Sizes":
        vector, unroll = c.ints("vector"), c.ints("unroll")
        threads = c.ints("width") * c.ints("depth")
        across = -(-self.form.column_count // (c.ints("width") * vector))
        words = sum(-(-b.dtype.bytes * vector // 4) for b in self.form.held)
        registers = SPARE_REGISTERS + unroll * words + vector * (-(-self._state_bytes // 4))
        return _Sizes(
            threads=threads,
            blocks=self.form.outer_count * across * c.ints("splits"),
            registers=registers,
            shared=threads // np.maximum(WARP_LANES // c.ints("width"), 1) * vector * self._state_bytes,
        )

    def legal(self, columns: Columns) -> Bools:
        s, form = self._sizes(columns), self.form
        vector, width, depth = columns.ints("vector"), columns.ints("width"), columns.ints("depth")
        unroll, splits = columns.ints("unroll"), columns.ints("splits")
        cluster, turns = columns.flags("join", CLUSTER), columns.flags("deal", TURNS)
        resident = limits_of(self.target).resident_blocks(s.threads, s.registers, s.shared)
        wide, steps = width * vector, splits * depth * unroll
        narrow = width < NARROW
        shape = (s.threads >= 128) & (s.threads <= 1024) & (s.shared <= MOST_SHARED_BYTES)
        shape &= wide < 2 * np.maximum(form.column_count, 8 * vector)
        least = min(SHORT_RUN_BYTES, form.column_count * form.held[0].dtype.bytes)
        shape &= wide * form.held[0].dtype.bytes >= np.where(narrow, least // 2, least)
        shape &= narrow == (depth > 64)
        shape &= ~narrow | (cluster & (np.abs(s.blocks / self.target.threads - 1.5) < 0.6))
        shape &= ~narrow | (s.blocks <= CLUSTERED * self.target.threads * resident)
        # Small ones: a single part, one row at a time. Large ones: enough blocks, enough under way in each.
        small = s.blocks // splits * form.over_count * wide < SMALL_POINTS
        plain = (splits == 1) & (unroll == 1) & (s.threads <= 256)
        worked = (steps <= form.over_count) & (s.blocks >= FEWEST_BLOCKS) & (s.threads >= 256) & (unroll > 1)
        worked &= np.minimum(resident, -(-s.blocks // self.target.threads)) * s.threads * unroll >= LEAST_UNDER_WAY
        few = (splits == 1) | (s.blocks <= MOST_BLOCKS_EACH * self.target.threads)
        share = -(-form.over_count // splits)
        parted = (splits == 1) | turns | ((splits - 1) * share < form.over_count)
        joined = ~cluster | (
            (~turns | narrow) & (splits > 1) & (splits <= 16) & (splits & (splits - 1) == 0) & (wide % splits == 0)
        )
        once = (splits > 1) | (~cluster & ~turns)
        tried = np.where(small, plain | worked, worked & few)
        legal: Bools = (resident >= 1) & shape & tried & parted & joined & once
        return legal

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        s, form = self._sizes(columns), self.form
        vector, splits = columns.ints("vector"), columns.ints("splits")
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=s.blocks,
            threads=s.threads,
            registers=s.registers,
            shared=s.shared,
            wanted=columns.ints("unroll") * vector * form.held_bytes,
        )
        second = (splits > 1) & ~columns.flags("join", CLUSTER)
        left = 2 * splits * form.outer_count * form.column_count * self._state_bytes
        return {
            **common,
            "run_bytes": (columns.ints("width") * vector * form.held_bytes).astype(np.float64),
            "thread_rows": form.over_count / (splits * columns.ints("depth")),
            "parts": splits.astype(np.float64),
            "part_bytes": np.where(second, left, 0).astype(np.float64),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        splits = int(setting["splits"])
        columns = Columns(self.knobs, codes_of(self.knobs, [Schedule.of("", 0, setting)]), {})
        s = self._sizes(columns)
        room = limits_of(self.target).resident_blocks(s.threads, s.registers, s.shared)
        return column_kernel(
            self.workload,
            self.form,
            ColumnSetting(
                vector=int(setting["vector"]),
                width=int(setting["width"]),
                depth=int(setting["depth"]),
                unroll=int(setting["unroll"]),
                splits=splits,
                deal=str(setting["deal"]),
                join=str(setting["join"]),
                final_depth=8 if splits <= 64 else 32,
                resident=int(np.minimum(room, -(-s.blocks // self.target.threads))[0]),
                ahead=int(limits_of(self.target).early_blocks(room, self.target.threads)[0]),
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """Columns: threads of a block, blocks, registers of a thread, shared bytes of a block."""

    threads: Ints
    blocks: Ints
    registers: Ints
    shared: Ints


def _plan(workload: Workload, target: Target) -> ColumnPlan | None:
    form = column_form(workload)
    return None if form is None else ColumnPlan(workload, target, form)


CUDA_COLUMNWISE = TileSketch("cuda_columnwise", 3, QUANTITIES, _plan)
