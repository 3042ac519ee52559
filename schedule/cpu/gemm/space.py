"""The settings of blocked matrix products on a processor, whatever multiplies: knobs, which of them are worth trying,
and what they imply. The sketches differ in their ``Unit``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.rewrite import loads_of
from ....ir.stmt import Kernel
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, Operand
from ...space.columns import Bools, Columns, Ints
from ...space.knob import Knob, Quantity
from ...tile_sketch import UsualPlan
from ..loops.knobs import STREAMED, store_knob
from .kernel import GemmSetting, batch_of
from .packing import NEVER, TASK, WHOLE

LEAST_WORK = 1 << 18
"""Multiply-adds below which there is nothing to block."""
LEAST_ROWS = 4
"""Rows below which reading the other operand is what takes the time."""
PIECES = tuple(1 << n for n in range(12))
"""Into how many parts an axis is cut."""
LEAST_DEPTH, MOST_DEPTH = 128, 1024
"""Steps of ``k`` in a block: fewer, and reading and writing C takes the time; more, and a panel leaves the cache."""
TASKS_PER_THREAD = 4
"""Tasks that a thread should have at most, if their blocks fit the cache then."""
MOST_IDLE = 0.15
LEAST_TASK_ROWS = 32
"""Rows of a task below which cutting rows further has the right operand read too often, where columns can be cut."""
CACHE_BYTES = 2 << 20
"""What the blocks of a task may take together: about the second level of cache."""
PAGE_BYTES = 4096
SAME_LINES_BYTES = 1024
FEW = 8
"""How often an operand may be read, and in how many lines at once, where its rows lie so far apart that they fall on
the same few lines of a cache."""
WORTH_COPYING_FIRST = 0.05
"""Vectors that tasks would copy for each multiply-add of vectors, from which on they may share one copy, made before
they begin: that goes through memory twice."""
MOST_COPYING = 0.07
"""The same, beyond which tasks must not copy, where they can avoid it."""
LEAST_STREAMED = 1 << 20
"""Bytes of outputs from which on it may pay to store them past the caches."""
LOAD_COST = 1 / 8
"""Of a load, in multiply-adds beside which it is done."""
TILE_SLACK = 0.03
"""What a tile may cost above the cheapest one."""

QUANTITIES = (
    Quantity("tasks", "tasks", "blocks of C that threads take one after the other"),
    Quantity("idle_share", "fraction", "thread time left idle when the tasks do not divide evenly"),
    Quantity("edge_waste", "fraction", "of the computed elements beyond the edges of C and of k"),
    Quantity("accumulators", "registers", "vector registers of the sums of a tile"),
    Quantity("loads_per_operation", "loads", "vectors and single elements read for each vector multiply-add"),
    Quantity("depth", "steps", "steps of k in a block"),
    Quantity("k_blocks", "blocks", "how often C is read and written"),
    Quantity("panel_bytes", "B", "of the panel of B that the tiles of a task share"),
    Quantity("a_block_bytes", "B", "of the block of A that the panels of a task share"),
    Quantity("b_block_bytes", "B", "of the block of B that the tiles of a task share"),
    Quantity("copied_share", "fraction", "elements copied by tasks for each multiply-add of a vector"),
    Quantity("whole_bytes", "B", "copied before the tasks begin, in every call"),
    Quantity("scattered_reads", "fraction", "of the operands, read from rows that fall on the same lines of a cache"),
)


@dataclass(frozen=True, slots=True)
class Unit:
    """What multiplies. ``lanes``: sums in a vector; ``rows``, ``vectors``: sizes of tiles to try. ``registers``: those
    that hold sums and operands, of ``block`` rows each; ``busy``: how many of sums keep it busy. ``group``: elements
    along ``k`` that become neighbours, ``step``: those that are multiplied together. ``operand_bytes``: of an element
    copied; ``shared``: steps of ``k`` that one of the right operand serves. ``left_in_place``, ``right_in_place``:
    whether an operand can be read where it lies; ``right_whole``: whether the right one can be copied before the tasks
    begin. ``fast``: tiles are so fast that both operands come from the second level of cache, and memory takes a good
    part of the time: other orders are worth trying, and other ways to store."""

    lanes: int
    rows: tuple[int, ...]
    vectors: tuple[int, ...]
    registers: int
    block: int
    busy: int
    step: int
    group: int
    operand_bytes: int
    left_in_place: bool
    right_in_place: bool
    right_whole: bool
    fast: bool
    lower: Callable[[Gemm, str, GemmSetting], Kernel]
    shared: int = 1

    def fits(self, rows: Ints, vectors: Ints) -> Bools:
        """Whether a tile leaves registers for what it multiplies."""
        blocks = rows // self.block
        spare = blocks if self.block > 1 else 1
        fitting: Bools = (blocks + 1) * vectors + spare <= self.registers
        return fitting


@dataclass(frozen=True)
class GemmPlan(UsualPlan):
    """``constants``: inputs that stay the same from call to call. An operand made of them alone is always copied whole:
    that is done before the first call, and costs none of them anything."""

    product: Gemm
    target: Target
    unit: Unit
    constants: frozenset[str] = frozenset()

    @property
    def lanes(self) -> int:
        return self.unit.lanes

    @property
    def knobs(self) -> tuple[Knob, ...]:
        p, unit = self.product, self.unit
        rows = tuple(r for r in unit.rows if r == unit.rows[0] or r < p.m.extent + unit.block)
        vectors = tuple(v for v in unit.vectors if v == 1 or (v - 1) * self.lanes < p.n.extent)
        depths = dict.fromkeys(self._whole_steps(-(-p.k.extent // parts)) for parts in PIECES)
        least, most = LEAST_DEPTH * unit.group, MOST_DEPTH * unit.group
        within = [d for d in depths if least <= d <= most] or [self._whole_steps(p.k.extent)]
        meaning = "is copied: never, by each task for a block of k (task), or before all tasks (whole)"
        fast = (
            Knob("by_rows", (1, 0), "whether tiles of a row of C follow one another, not those of columns"),
            store_knob(),
        )
        return (
            Knob("rows", rows, "rows of a tile of C in registers"),
            Knob("vectors", vectors, f"vectors of {self.lanes} in a row of a tile"),
            Knob("row_tasks", PIECES, "blocks of C along its rows"),
            Knob("column_tasks", PIECES, "blocks of C along its columns"),
            Knob("depth", tuple(sorted(within)), "steps of k in a block"),
            Knob("pack_a", self._copies(p.a, unit.left_in_place), f"when the left operand {meaning}"),
            Knob("pack_b", self._copies(p.b, unit.right_in_place), f"when the right operand {meaning}"),
            *(fast if unit.fast else ()),
        )

    def _copies(self, operand: Operand, in_place: bool) -> tuple[str, ...]:
        """When an operand may be copied."""
        if self._is_kept(operand):
            return (WHOLE,)
        return tuple(m for m, can in ((NEVER, in_place), (TASK, True), (WHOLE, self._can_be_whole(operand))) if can)

    def _can_be_whole(self, operand: Operand) -> bool:
        return operand is self.product.a or self.unit.right_whole

    def _is_kept(self, operand: Operand) -> bool:
        """Whether an operand is copied once, for all calls."""
        read = {load.buffer.name for load in loads_of(operand.body)}
        return bool(read) and read <= self.constants and self._can_be_whole(operand)

    def _whole_steps(self, depth: int) -> int:
        return -(-depth // self.unit.step) * self.unit.step

    def _sizes(self, c: Columns) -> dict[str, Ints]:
        p, rows, columns = self.product, c.ints("rows"), c.ints("vectors") * self.lanes
        tiles, panels = _ceil(p.m.extent, rows), _ceil(p.n.extent, columns)
        depth = c.ints("depth")
        task_tiles, task_panels = _ceil(tiles, c.ints("row_tasks")), _ceil(panels, c.ints("column_tasks"))
        return {
            "tiles": tiles,
            "panels": panels,
            "task_tiles": task_tiles,
            "task_panels": task_panels,
            "tasks": c.ints("row_tasks") * c.ints("column_tasks") * prod(a.extent for a in p.batch),
            "k_blocks": _ceil(p.k.extent, depth),
            "a_block": task_tiles * rows * depth * self.unit.operand_bytes,
            "b_block": task_panels * columns * depth * self.unit.operand_bytes // self.unit.shared,
            "computed": tiles * rows * panels * columns,
        }

    def usual(self, c: Columns) -> Bools:
        size = self._sizes(c)
        usual: Bools = self._tile_fits(c, size) & self._tasks_fit(c, size) & self._copies_pay(c, size)
        small = self.unit.fast and sum(r.tensor.bytes for r in self.product.results) < LEAST_STREAMED
        return usual & ~c.flags("store", STREAMED) if small else usual

    def _tile_fits(self, c: Columns, size: Mapping[str, Ints]) -> Bools:
        """Tiles that fit the registers and keep the units busy, with few loads and small edges."""
        cost = self._tile_cost(c.ints("rows"), c.ints("vectors"))
        fits: Bools = cost <= self._least_tile_cost * (1 + TILE_SLACK)
        return fits

    def _by_rows(self, c: Columns) -> Bools:
        return c.ints("by_rows") == 1 if self.unit.fast else np.zeros(len(c), dtype=bool)

    @cached_property
    def _least_tile_cost(self) -> float:
        return float(self._tile_cost(*np.meshgrid(self.knobs[0].values, self.knobs[1].values)).min())

    def _tile_cost(self, rows: Ints, vectors: Ints) -> NDArray[np.float64]:
        """Time for all tiles, in elements of C; infinite where a tile does not fit the registers."""
        columns, blocks = vectors * self.lanes, rows // self.unit.block
        computed = _ceil(self.product.m.extent, rows) * rows * _ceil(self.product.n.extent, columns) * columns
        idle = np.maximum(self.unit.busy / (blocks * vectors), 1)
        cost = computed * idle * (1 + LOAD_COST * (blocks + vectors) / (blocks * vectors))
        return np.where(self.unit.fits(rows, vectors), cost, np.inf)

    def _tasks_fit(self, c: Columns, size: Mapping[str, Ints]) -> Bools:
        """Enough tasks, of even sizes, whose blocks fit the cache, and each cut said in one way."""
        row_tasks, column_tasks, threads = c.ints("row_tasks"), c.ints("column_tasks"), self.target.threads
        ok: Bools = _ceil(size["tiles"], size["task_tiles"]) == row_tasks
        ok &= _ceil(size["panels"], size["task_panels"]) == column_tasks
        batches = prod(a.extent for a in self.product.batch)
        most = size["tiles"] * size["panels"] * batches
        ok &= size["tasks"] >= np.minimum(threads, most)
        ok &= (self._idle_share(size["tasks"]) <= MOST_IDLE) | (most < threads / MOST_IDLE)
        tall = (row_tasks == 1) | (size["task_tiles"] * c.ints("rows") >= LEAST_TASK_ROWS)
        ok &= tall | (size["panels"] * batches < threads)
        by_rows = self._by_rows(c)
        a_block = np.where(by_rows, size["a_block"] // size["task_tiles"], size["a_block"])
        fits = a_block + size["b_block"] <= CACHE_BYTES
        ok &= ~by_rows | ((size["task_tiles"] > 1) & (size["task_panels"] > 1) & ~c.flags("pack_a", TASK))
        fewer = np.where((row_tasks > 1) | (column_tasks > 1), size["tasks"] // 2, 0)
        spare = (fewer < TASKS_PER_THREAD * threads) | (4 * (a_block + size["b_block"]) > CACHE_BYTES)
        return ok & fits & spare

    def _copies_pay(self, c: Columns, size: Mapping[str, Ints]) -> Bools:
        """Copies that are used more than once, and no reading of rows on the same lines again and again."""
        p, even = self.product, self.product.k.extent % c.ints("depth") == 0
        ok: Bools = np.ones(len(c), dtype=bool)
        rows, columns = c.ints("rows"), c.ints("vectors") * self.lanes
        uses = size["task_panels"] * columns, size["task_tiles"] * rows * self.unit.shared
        for knob, operand, again, used, tasks, lines in (
            ("pack_a", p.a, size["panels"], uses[0], c.ints("column_tasks"), rows),
            ("pack_b", p.b, size["tiles"], uses[1], c.ints("row_tasks"), c.ints("depth")),
        ):
            if self._is_kept(operand):
                continue
            never, copying = c.flags(knob, NEVER), self.lanes * self.unit.block / used
            ok &= ~c.flags(knob, WHOLE) | ((tasks > 1) & (copying > WORTH_COPYING_FIRST))
            ok &= ~c.flags(knob, TASK) | (copying <= MOST_COPYING) | (tasks == 1)
            ok &= ~never | even
            if operand is p.a and self.unit.block > 1:
                ok &= ~never | (size["tiles"] * rows == p.m.extent)
            if self._is_scattered(operand):
                ok &= ~never | (again <= FEW) | (lines <= FEW)
        return ok

    def _is_scattered(self, operand: Operand) -> bool:
        """Whether rows of an operand fall on the same few lines of a cache."""
        once = self.unit.block > 1  # a tile takes whole lines, and needs none of them again soon
        pitch = max(operand.row, operand.k) * self.unit.operand_bytes
        return pitch % (PAGE_BYTES if once else SAME_LINES_BYTES) == 0

    def _idle_share(self, tasks: Ints) -> NDArray[np.float64]:
        threads = self.target.threads
        share: NDArray[np.float64] = 1 - tasks / (threads * _ceil(tasks, threads))
        return share

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        p, size = self.product, self._sizes(columns)
        rows, vectors, depth = columns.ints("rows"), columns.ints("vectors"), columns.ints("depth")
        element, blocks = self.unit.operand_bytes, rows // self.unit.block
        whole_a = columns.flags("pack_a", WHOLE) & (not self._is_kept(p.a))
        whole_b = columns.flags("pack_b", WHOLE) & (not self._is_kept(p.b))
        never_a, never_b = columns.flags("pack_a", NEVER), columns.flags("pack_b", NEVER)
        task_a, task_b = columns.flags("pack_a", TASK), columns.flags("pack_b", TASK)
        copied = task_a / (size["task_panels"] * vectors * self.lanes) + task_b / (
            size["task_tiles"] * rows * self.unit.shared
        )
        found: dict[str, Ints | NDArray[np.float64]] = {
            "tasks": size["tasks"],
            "idle_share": self._idle_share(size["tasks"]),
            "edge_waste": 1 - p.m.extent * p.n.extent * p.k.extent / (size["computed"] * size["k_blocks"] * depth),
            "accumulators": blocks * vectors,
            "loads_per_operation": (blocks + vectors) / (blocks * vectors),
            "depth": depth,
            "k_blocks": size["k_blocks"],
            "panel_bytes": vectors * self.lanes * depth * element,
            "a_block_bytes": size["a_block"],
            "b_block_bytes": size["b_block"],
            "copied_share": copied * self.lanes * self.unit.block,
            "whole_bytes": element * (whole_a * _points(p, p.a, p.m) + whole_b * _points(p, p.b, p.n)),
            "scattered_reads": 0.5 * never_a * self._is_scattered(p.a) + 0.5 * never_b * self._is_scattered(p.b),
        }
        return {name: np.asarray(column, dtype=np.float64) for name, column in found.items()}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        p = self.product
        rows, vectors = int(setting["rows"]), int(setting["vectors"])
        tiles, panels = -(-p.m.extent // rows), -(-p.n.extent // (vectors * self.lanes))
        chosen = GemmSetting(
            rows=rows,
            vectors=vectors,
            lanes=self.lanes,
            tiles=-(-tiles // int(setting["row_tasks"])),
            panels=-(-panels // int(setting["column_tasks"])),
            depth=int(setting["depth"]),
            pack_a=str(setting["pack_a"]),
            pack_b=str(setting["pack_b"]),
            by_rows=bool(setting.get("by_rows", 0)),
            streamed=setting.get("store") == STREAMED,
        )
        return self.unit.lower(p, KERNEL_NAME, chosen)


def _points(p: Gemm, operand: Operand, own: Axis) -> int:
    """Elements of an operand."""
    return prod(a.extent for a in (own, p.k, *batch_of(operand, p)))


def reads_nothing_else(p: Gemm) -> bool:
    """Whether the outputs are computed from the sum and inputs alone."""
    inputs = {b.name for b in p.inputs} | {p.accumulator.name}
    return all(load.buffer.name in inputs for r in p.results for load in loads_of(r.value))


def is_large(p: Gemm, unit: Unit) -> bool:
    """Whether there is something to block."""
    enough = prod(a.extent for a in (p.m, p.n, p.k, *p.batch)) >= LEAST_WORK
    return enough and p.m.extent >= LEAST_ROWS and p.n.extent >= unit.lanes


def _ceil(a: int | Ints, b: int | Ints) -> Ints:
    return np.asarray(-(-np.asarray(a, dtype=np.int64) // np.asarray(b, dtype=np.int64)))
