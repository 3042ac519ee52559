"""Row kernels for graphics processors: softmax, norms, sums and positions of rows, with what is fused to them.

A team of threads takes a row, reads it once into registers, reduces it as often as needed and writes the outputs
(``tile.row_program``). Long rows are shared by the blocks of a cluster, or read again where they fit nowhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue, Schedule
from ....core.target import Target
from ....ir.expr import Load, walk
from ....ir.rewrite import free_variables
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.rowwise import RowForm, row_axis, row_form
from ...space.columns import Bools, Columns, Ints, codes_of
from ...space.knob import Knob, Quantity
from ...tile_sketch import Plan, TileSketch
from ..occupancy import limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from .kernel import row_kernel
from .passes import accumulation
from .setting import MEMORY, QUEUE, REGISTERS, SPLIT, RowSetting

MOST_CHUNKS = 16
"""Vectors of a row that a thread holds."""
CLUSTER_ROW_BYTES = 32 << 10
"""Shorter rows gain nothing from a cluster: its barriers cost more than a block's."""
LONG_ROW_BYTES = 256 << 10
"""Rows from here on may be read again instead of held: they are beyond the registers of a block."""
ALL, HALF, TWO = "all", "half", "two"
AHEAD = (ALL, HALF, TWO)
"""What a queue holds of the next row while it also holds the whole of this one (the rest comes as this one moves to
registers); or the next two rows."""
MOST_WASTE = 4 / 3
"""Vectors that threads could hold over those there are."""
SPARE_REGISTERS = 22
"""Registers for addresses and partial results, roughly (from compiled kernels)."""

FEWER_REGISTERS = 12
"""By so many the estimate may be too high."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("row_bytes", "B", "what is read of a row"),
    Quantity("chunks", "vectors", "vectors of a row that a thread takes"),
    Quantity("idle_share", "fraction", "of the vectors that threads could take, those there are none of"),
    Quantity("row_threads", "threads", "threads that work on a row"),
    Quantity("rows_in_turn", "rows", "rows that a team takes one after the other"),
    Quantity("meetings", "barriers", "barriers of a block or cluster for a row"),
    Quantity("passes", "passes", "times that a row is read from memory"),
)


@dataclass(frozen=True)
class RowPlan(Plan):
    workload: Workload
    target: Target
    form: RowForm

    @property
    def knobs(self) -> tuple[Knob, ...]:
        longest = max(1, self.form.column_count // min(self._vectors()))
        lanes = tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n < 2 * longest)
        long = self.form.column_count * self.form.held_bytes
        limits = limits_of(self.target)
        holds = (REGISTERS, SPLIT, QUEUE, MEMORY) if limits.copies_alone else (REGISTERS, MEMORY)
        clusters: tuple[int, ...] = (1,)
        if limits.clusters and long >= CLUSTER_ROW_BYTES:
            clusters = (1, 2, 4, 8, 16) if long >= LONG_ROW_BYTES else (1, 2, 4, 8)
        return (
            Knob("vector", self._vectors(), "neighbouring elements that a thread reads at once"),
            Knob("lanes", lanes, "threads of a row in a block"),
            Knob("teams", tuple(n for n in (1, 2, 4, 8, 16, 32, 64) if n <= limits.lanes), "rows of a block"),
            Knob("cluster", clusters, "blocks of a row"),
            Knob("hold", holds, "where a row stays between the passes over it"),
            Knob(
                "resident", (1, 2, 3, 4, 8), "split, queue: blocks of a multiprocessor, which share its shared memory"
            ),
            Knob("ahead", AHEAD, "queue: how much of the next row it holds beside this one, of what there is room for"),
            Knob(
                "early",
                (0, 1, 3, 5) if self._weights else (0,),
                "which part of the weights is read before the rows are reduced: none, all, or one in so many",
            ),
        )

    @property
    def _weights(self) -> list[Load]:
        """What the outputs read beside the rows."""
        read = {e for c in self.form.wide for e in walk(c.body) if isinstance(e, Load)}
        return [load for load in self.form.beside if load in read]

    @property
    def _weights_follow_rows(self) -> bool:
        return any(
            name.startswith(row_axis(0)[:-1]) for w in self._weights for i in w.indices for name in free_variables(i)
        )

    def _vectors(self) -> tuple[int, ...]:
        """Vectors of 16 bytes of the narrowest and of the widest element; where they do not divide a row of one axis,
        also smaller ones that do. Rows of several axes are only read in vectors that divide the last one."""
        sizes = [b.dtype.bytes for b in self.form.held] + [c.tensor.dtype.bytes for c in self.form.wide]
        last = self.form.columns[-1]
        wished = sorted({max(1, 16 // min(sizes)), max(1, 16 // max(sizes))})
        exact = [v for v in (1, 2, 4, 8, 16) if last % v == 0 and v <= max(wished)]
        if len(self.form.columns) > 1 or last < 32 * max(wished):
            return tuple(exact[-2:] if len(exact) > 1 and exact[-1] >= max(wished) else exact[-1:])
        return tuple(dict.fromkeys([*wished, *(v for v in exact[-1:] if v >= 2)]))

    def _sizes(self, c: Columns) -> "_Sizes":
        form, limits = self.form, limits_of(self.target)
        vector, lanes, cluster, teams = c.ints("vector"), c.ints("lanes"), c.ints("cluster"), c.ints("teams")
        columns = form.column_count
        vectors = np.where(columns % vector == 0, columns // vector, (columns - vector + 1) // vector)
        share = -(-vectors // cluster)
        chunks = -(-share // lanes)
        values = sum(d.bytes for r in form.reductions for d in accumulation(r).dtypes)
        queue, again = c.flags("hold", QUEUE), c.flags("hold", MEMORY)
        warps = np.maximum(1, lanes // 32)
        scratch = np.where(warps * cluster > 1, np.where(queue, 2, 1) * teams * warps * values, 0)
        room = limits.shared_bytes_per_multiprocessor // c.ints("resident") - 1024
        room = np.minimum(room, limits.shared_bytes_per_block) - scratch - 256
        split = c.flags("hold", SPLIT)
        most = np.where(split, 1, np.where(c.flags("ahead", TWO), 3, 2)) * chunks
        slots = np.minimum(most, room // np.maximum(lanes * teams * vector * form.held_bytes, 1))
        slots = np.where(c.flags("ahead", HALF), np.minimum(slots, chunks + chunks // 2), slots)
        kept = np.where(queue, np.maximum(2 * chunks - slots, 0) + 1, np.where(again, UNROLL, chunks))
        kept = np.minimum(np.where(split, chunks - slots + 1, kept), np.where(again, UNROLL, chunks))
        words = -(-form.held_bytes * vector // 4)
        weights = sum(-(-load.dtype.bytes * vector // 4) for load in self._weights)
        early = np.where(c.ints("early") > 0, chunks // np.maximum(c.ints("early"), 1), 0)
        weights = weights * np.where(c.flags("early", 1), chunks, early + 1)
        everywhere = self.target.threads * c.ints("resident") // cluster
        everywhere = np.where(cluster > 2, everywhere * 15 // 16, everywhere)  # clusters do not cross parts of the chip
        everywhere = np.minimum(everywhere, form.row_count) * cluster
        return _Sizes(
            vectors=vectors,
            share=share,
            chunks=chunks,
            edges=columns - vectors * vector,
            slots=slots,
            early=early,
            registers=SPARE_REGISTERS + words * kept + vector + weights,
            shared=scratch + np.where(queue | split, slots * lanes * teams * vector * form.held_bytes, 0),
            threads=lanes * teams,
            blocks=np.where(queue, everywhere, -(-form.row_count // teams) * cluster),
        )

    def _at_once(self, s: "_Sizes") -> Ints:
        """Blocks that run at once, hardly less: compiled kernels take a few registers less than is estimated. 0 where
        asking for their data is of no use."""
        registers = np.maximum(s.registers - FEWER_REGISTERS, 1)
        limits = limits_of(self.target)
        return limits.early_blocks(limits.resident_blocks(s.threads, registers, s.shared), self.target.threads)

    def legal(self, columns: Columns) -> Bools:
        s, form = self._sizes(columns), self.form
        lanes, teams, cluster = columns.ints("lanes"), columns.ints("teams"), columns.ints("cluster")
        vector, resident = columns.ints("vector"), columns.ints("resident")
        queue, again = columns.flags("hold", QUEUE), columns.flags("hold", MEMORY)
        split = columns.flags("hold", SPLIT)
        limits = limits_of(self.target)
        room = limits.resident_blocks(s.threads, s.registers, s.shared)
        fits = room >= np.where(queue | split, resident, 1)
        shape = (
            (s.threads >= limits.lanes) & (s.threads % limits.lanes == 0) & ((teams == 1) | split | (s.threads <= 256))
        )
        shape &= lanes >= s.edges
        shape &= (teams == 1) | (s.threads == limits.lanes) | (teams <= form.row_count)
        shape &= (cluster == 1) | ((teams == 1) & (lanes >= 128) & (s.vectors > (cluster - 1) * s.share))
        shape &= (cluster == 1) | (s.chunks >= 4)
        waste = s.chunks * lanes * cluster <= np.maximum(MOST_WASTE * s.vectors, s.vectors + np.minimum(lanes, 32) - 1)
        early = columns.ints("early")
        plain = (resident == 1) & columns.flags("ahead", ALL) & (early <= 1)
        held = (s.chunks <= np.where(lanes <= 32, MOST_CHUNKS // 2, MOST_CHUNKS)) & ~again & ~queue & ~split & plain
        read = again & (form.column_count * form.held_bytes >= LONG_ROW_BYTES)
        read &= cluster == 1 if form.wide else True
        read &= (lanes >= 256) & (s.chunks > UNROLL) & plain & (early == 0)
        sized = np.isin(np.array([b.dtype.bytes for b in form.held])[:, None] * vector, (4, 8, 16)).all(axis=0)
        parted = split & sized & (s.chunks <= 2 * MOST_CHUNKS) & (s.slots >= 1) & (cluster == 1) & (lanes >= 128)
        parted &= ((teams == 1) & (resident >= 2)) | ((teams == 2) & (resident == 1) & (lanes == 512))
        parted &= columns.flags("ahead", ALL) & (early <= 1) & (len(form.wide) > 0) & (s.threads * resident >= 512)
        parted &= form.column_count * form.held_bytes >= CLUSTER_ROW_BYTES
        queued = queue & sized & (s.chunks <= MOST_CHUNKS) & (s.slots >= s.chunks) & (teams == 1) & (cluster <= 8)
        half, two = columns.flags("ahead", HALF), columns.flags("ahead", TWO)
        queued &= ~half | ((s.slots == s.chunks + s.chunks // 2) & (s.chunks >= 4))
        queued &= ~two | ((s.slots == 3 * s.chunks) & (cluster > 1))
        queued &= (len(form.wide) > 0) & (lanes >= 128)
        queued &= (
            (resident != 3)
            & (lanes * resident >= 512)
            & (lanes * resident <= 1024)
            & (form.row_count * cluster >= 2 * s.blocks)
        )
        queued &= (early == 0) | ~(self._weights_follow_rows | (s.edges > 0))
        # A whole row in a block does not leave room for all its weights.
        queued &= (early <= 1) | ((cluster == 1) & columns.flags("ahead", ALL) & (s.early >= 2))
        legal: Bools = fits & shape & waste & (held | read | queued | parted)
        return legal

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        s, form = self._sizes(columns), self.form
        lanes, cluster = columns.ints("lanes"), columns.ints("cluster")
        queue, again = columns.flags("hold", QUEUE), columns.flags("hold", MEMORY)
        at_once = np.where(again, UNROLL, np.where(queue, s.slots, s.chunks))
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=s.blocks,
            threads=s.threads,
            registers=s.registers,
            shared=s.shared,
            wanted=at_once * columns.ints("vector") * form.held_bytes,
        )
        meets = np.where((lanes > 32) | (cluster > 1), len(form.reductions), 0) + (cluster > 1)
        passes = len(form.reductions) + bool(form.wide)
        return {
            **common,
            "row_bytes": np.full(len(columns), float(form.column_count * form.held_bytes)),
            "chunks": s.chunks.astype(np.float64),
            "idle_share": 1 - s.vectors / np.maximum(s.chunks * lanes * cluster, 1),
            "row_threads": (lanes * cluster).astype(np.float64),
            "rows_in_turn": np.where(queue, form.row_count * cluster / s.blocks, 1.0),
            "meetings": meets.astype(np.float64),
            "passes": np.where(again, passes, 1).astype(np.float64),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        columns = Columns(self.knobs, codes_of(self.knobs, [Schedule.of("", 0, setting)]), {})
        sizes = self._sizes(columns)
        limits = limits_of(self.target)
        room = limits.resident_blocks(sizes.threads, sizes.registers, sizes.shared)
        hold, cluster, teams = str(setting["hold"]), int(setting["cluster"]), int(setting["teams"])
        asks = hold == REGISTERS and cluster == 1 and self.form.row_count % teams == 0
        resident = int(setting["resident"]) if hold in (QUEUE, SPLIT) else 0
        share = 2 if self.form.wide else 1  # the launch before still writes: more is up to 9 % slower on an H200
        if hold == REGISTERS and cluster > 1:  # left alone, the compiler takes more registers than there is need for
            resident = int(room[0])
        return row_kernel(
            self.workload,
            self.form,
            RowSetting(
                vector=int(setting["vector"]),
                lanes=int(setting["lanes"]),
                teams=teams,
                cluster=cluster,
                hold=hold,
                unroll=UNROLL,
                slots=int(sizes.slots[0]),
                blocks=int(sizes.blocks[0]),
                early=int(sizes.early[0]),
                resident=resident,
                ahead=int(limits.early_blocks(room, self.target.threads)[0]) // share if asks else 0,
                apart=int(self._at_once(sizes)[0]) if asks and self.form.wide else 0,
            ),
        )


UNROLL = 4
"""Vectors of a thread under way at once where a row is read again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """Columns: whole vectors of a row, those of a block, those of a thread, single columns, vectors of a thread in its
    queue, those whose weights it reads early, registers of a thread, shared bytes, threads, blocks."""

    vectors: Ints
    share: Ints
    chunks: Ints
    edges: Ints
    slots: Ints
    early: Ints
    registers: Ints
    shared: Ints
    threads: Ints
    blocks: Ints


def _plan(workload: Workload, target: Target) -> RowPlan | None:
    form = row_form(workload)
    return None if form is None else RowPlan(workload, target, form)


CUDA_ROWWISE = TileSketch("cuda_rowwise", 3, QUANTITIES, _plan)
AMDGPU_ROWWISE = TileSketch("amdgpu_rowwise", 2, QUANTITIES, _plan, kind="amdgpu")
