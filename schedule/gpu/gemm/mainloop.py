"""Large products on the matrix instructions of warpgroups, fed by copies of whole boxes (sm_90a).

One warp does nothing but start copies of boxes of both operands into a ring in shared memory; groups of four warps
multiply what has arrived, keep one step's products under way, and say which stages are free again. A block works
through many tiles of the result, and its copies run ahead into the next one while the groups store their sums. All
groups share a tile, or take tiles in turn: then one multiplies while another one stores. The blocks of a cluster work
on neighbouring tiles, and each reads a part of the operand that they share, for all of them.
"""

from collections.abc import Mapping, Sequence

from ....core.dtypes import INDEX, float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import WARP_LANES, Compare, CompareOp, Expr, Load, Var, index, logical_and
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ....ir.gpu.setmaxnreg import SetMaxRegisters
from ....ir.gpu.wgmma import SWIZZLE_128B, SWIZZLE_128B_ELEMENTS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ....ir.rewrite import free_variables
from ....ir.stmt import HardwareAxis, Kernel
from ...problems.gemm import Gemm, Operand
from ...tile.names import FreshNameWriter
from .epilogue import ResultWriter
from .operand_stages import Ring, ask_for
from .repack import even_product
from .sizes import PARTIAL_PADDING, PRODUCER_REGISTERS, WARPGROUP_WARPS, GemmSizes
from .stream_k import EvenShares, add_parts
from .tile_scheduler import TileGrid, block_bits

TURNS, LEAST_TURNED = 4, 16
"""Of products of a batch: at how many places of ``k`` they begin, and steps from which on they do."""


def lower_products(p: Gemm, name: str, s: GemmSizes[int]) -> Kernel:
    """The kernel of one setting."""
    return _Program(p, name, s).kernel()


class _Program:
    def __init__(self, p: Gemm, name: str, s: GemmSizes[int]) -> None:
        self.p, self.s, self.name = p, s, name
        self.steps = -(-p.k.extent // (s.split_k * s.k_atoms * SWIZZLE_128B_ELEMENTS))
        self.w = FreshNameWriter(p.names)

    def kernel(self) -> Kernel:
        s, w = self.s, self.w
        self.p, workspace = even_product(w, self.p)
        p = self.p
        self.grid = TileGrid(p, s.tile_m, s.tile_n, s.group_m, s.cluster_m, s.cluster_n)
        if s.unit_k_iters:
            self.shares = EvenShares(self.grid.tiles, self.steps, s.unit_k_iters)
            self.parts = self.shares.partials(w, s.tile_m, s.mma_n)
            workspace = (*workspace, self.parts)
        bounds = [
            ("worker", s.clusters, HardwareAxis.GRID_X),
            ("rank", s.cluster_size, HardwareAxis.CLUSTER),
            ("warp", s.warps, HardwareAxis.WARP),
            ("lane", WARP_LANES, HardwareAxis.LANE),
        ]
        if s.cluster_size == 1:
            del bounds[1]
        with w.launch(self.name, bounds, min_blocks=s.ctas_per_sm) as axes:
            self.worker, self.warp, self.lane = axes[0], axes[-2], axes[-1]
            rank: Expr = axes[1] if s.cluster_size > 1 else index(0)
            self.of_tile, self.of_k = (rank // s.split_k, rank % s.split_k) if s.split_k > 1 else (rank, index(0))
            copying = index(s.consumer_warpgroups * WARPGROUP_WARPS)
            self.first = Compare(CompareOp.EQ, self.lane, index(0))
            self.multiplies = Compare(CompareOp.LT, self.warp, copying)
            self.copies = Compare(CompareOp.GE, self.warp, copying)
            self.elected = logical_and(Compare(CompareOp.EQ, self.warp, copying), self.first)
            self._allocate()
            with w.scope():
                self.left = self._ring("left", [p.a], "m", s.tile_m)
                self.right = self._ring("right", p.all_b, "n", s.tile_n)
                often = self.grid.tiles > s.clusters
                self.results = ResultWriter(
                    w, p, self.warp, self.lane, s.consumer_warpgroups, s.atoms_m, s.tile_n, s.epilogue_stages, often
                )
                if not often and not workspace:
                    self._ask()
                self._prepare()
                self._tiles()
                with w.when(self.multiplies):
                    self.results.drain()
                if s.split_k > 1:
                    w.barrier()
            if s.split_k > 1:
                with w.scope():  # in the place of the rings
                    self._add_up()
            if s.cluster_size > 1:
                w.barrier(SyncScope.CLUSTER)
        if s.unit_k_iters:
            add_parts(w, p, self.grid, self.shares, self.parts)
        return Kernel(self.name, p.inputs, tuple(r.tensor for r in p.results), workspace, w.finish())

    # --- shared memory and roles

    def _allocate(self) -> None:
        s, w = self.s, self.w
        self.full = w.allocate("full", (s.stages,), INDEX, MemoryScope.SHARED)
        self.free = w.allocate("free", (s.stages,), INDEX, MemoryScope.SHARED)
        if s.ping_pong:
            self.turns = w.allocate("turns", (s.consumer_warpgroups,), INDEX, MemoryScope.SHARED)
        # sums of their own for groups with tiles of their own: else one group's would be alive while another's are made
        self.sums = [
            w.allocate("sums", (s.atoms_m, s.mma_n // 2), float32, MemoryScope.REGISTER)
            for _ in range(s.consumer_warpgroups if s.ping_pong else 1)
        ]

    def _ring(self, name: str, operands: Sequence[Operand], axis: str, extent: int) -> Ring:
        s, loads = self.s, tuple(o.load for o in operands if o.load is not None)
        along_k = loads[0].indices[-1] == Var("k")
        runs = -(-extent // SWIZZLE_128B_ELEMENTS) * len(loads)
        shape = (
            (extent * len(loads), SWIZZLE_128B_ELEMENTS)
            if along_k
            else (runs, SWIZZLE_128B_ELEMENTS, SWIZZLE_128B_ELEMENTS)
        )
        strides = (
            (SWIZZLE_128B_ELEMENTS, 1)
            if along_k
            else (SWIZZLE_128B_ELEMENTS * SWIZZLE_128B_ELEMENTS, SWIZZLE_128B_ELEMENTS, 1)
        )
        slab = shape[0] * strides[0]
        layout = Layout((s.k_atoms * slab, slab, *strides), SWIZZLE_128B)
        buffer = self.w.allocate(name, (s.stages, s.k_atoms, *shape), loads[0].buffer.dtype, MemoryScope.SHARED, layout)
        return Ring(buffer, loads, axis, extent, along_k, *self._shared_by(axis))

    def _shared_by(self, axis: str) -> tuple[int, Expr, Expr | None]:
        """The blocks of the cluster that need the same places of ``axis``: how many, which one this is, their bits."""
        s, (of_m, of_n) = self.s, self.grid.within(self.of_tile)
        parts, part, apart, others = (
            (s.cluster_n, of_n, s.cluster_m, range(s.cluster_m))
            if axis == "m"
            else (s.cluster_m, of_m, 1, range(0, s.tiles_per_cluster, s.cluster_m))
        )
        if parts == 1:
            return 1, index(0), None
        first = (self.of_tile - part * apart) * s.split_k + self.of_k
        firsts = [tile * s.split_k + k for tile in others for k in range(s.split_k)]
        return parts, part, block_bits(first, firsts, [n * apart * s.split_k for n in range(parts)])

    def _prepare(self) -> None:
        s, w = self.s, self.w
        workers = WARPGROUP_WARPS if s.ping_pong else s.consumer_warpgroups * WARPGROUP_WARPS
        with w.when(self.elected):
            with w.loop("barrier", s.stages) as number:
                w.emit(MbarrierInit(self.full, number, 1))
                w.emit(MbarrierInit(self.free, number, workers * s.tiles_per_cluster))
            if s.ping_pong:
                for group in range(s.consumer_warpgroups):
                    w.emit(MbarrierInit(self.turns, index(group), WARPGROUP_WARPS))
        w.barrier(SyncScope.CLUSTER if s.cluster_size > 1 else SyncScope.BLOCK)
        if s.consumer_registers:
            with w.when(self.copies):
                w.emit(SetMaxRegisters(PRODUCER_REGISTERS, increase=False))
            with w.when(self.multiplies):
                w.emit(SetMaxRegisters(s.consumer_registers, increase=True))

    def _ask(self) -> None:
        """Have what fills the rings first brought into the cache while the launch before this one still ends, each box
        once, by one of the blocks that read it (asked for by all of them it costs as much as copying it). On an H200
        2048^3 takes 24.0 us so, not 24.4, and 512^3 2.4, not 2.7. Blocks with more than a tile have little of that,
        and what has been copied first is in the cache already."""
        s = self.s
        if self.p.batch or s.split_k > 1:
            return
        at, steps = self.grid.place(self.worker, self.of_tile), min(s.stages, self.steps)
        with self.w.when(self.elected):
            for ring, other, size, sharers in (
                (self.left, at["n"], s.tile_n * s.cluster_n, self.grid.n),
                (self.right, at["m"], s.tile_m * s.cluster_m, self.grid.m),
            ):
                if sharers > 1:
                    with self.w.loop("asked", -(-steps // sharers)) as turn:
                        ask_for(self.w, ring, at, other // size + turn * sharers, steps, s.k_atoms)

    # --- tiles

    def _tiles(self) -> None:
        """Every tile of this block; its number among them counts the steps of the ring on."""
        s, w = self.s, self.w
        turns = s.consumer_warpgroups if s.ping_pong else 1
        laps = self.shares.laps if s.unit_k_iters else -(-self.grid.tiles // (s.clusters * turns))
        with w.loop("lap", laps) as lap:
            if s.unit_k_iters:
                self._part(lap)
                return
            if not s.ping_pong:
                self._tile(lap, laps, self.multiplies)
                return
            for turn in range(turns):
                mine = Compare(CompareOp.EQ, self.warp // WARPGROUP_WARPS, index(turn))
                # a group begins when the one before has started its last products; the first one does so at once
                parity = (lap + (0 if turn else 1)) % 2
                self._tile(lap * turns + turn, laps * turns, mine, (turn, parity))

    def _tile(self, number: Expr, numbers: int, mine: Expr, turn: tuple[int, Expr] | None = None) -> None:
        s, w, first = self.s, self.w, self.first
        sums = self.sums[turn[0] if turn else 0]
        tile = number * s.clusters + self.worker
        spare = numbers * s.clusters > self.grid.tiles
        with w.when(Compare(CompareOp.LT, tile, index(self.grid.tiles)) if spare else None):
            at = self.grid.place(tile, self.of_tile)
            if turn is not None:
                with w.when(mine):
                    w.emit(MbarrierWait(self.turns, index(turn[0]), turn[1]))
            with w.loop("step", self.steps) as step:
                count = number * self.steps + step
                with w.when(self.copies), w.when(self.elected):
                    self._copy(at, step, count)
                with w.when(mine):
                    self._multiply(sums, step, count)
            with w.when(mine):
                if turn is not None:
                    with w.when(first):
                        w.emit(MbarrierArrive(self.turns, index((turn[0] + 1) % s.consumer_warpgroups)))
                of_group = self._of_group(at)
                ahead = self.results.read_ahead(of_group)
                w.emit(WarpgroupMmaWait(0))
                self._release(number * self.steps + (self.steps - 1))
                if s.split_k == 1:
                    self.results.write(sums, of_group, ahead)

    def _part(self, lap: Expr) -> None:
        """What this block does of one tile: its outputs, where that is all of it, or else its sums."""
        s, w, sums = self.s, self.w, self.sums[0]
        part = self.shares.part(self.worker, lap)
        with w.when(part.steps > 0):
            at = self.grid.place(part.tile, index(0))
            with w.loop("step", min(self.steps, s.unit_k_iters)) as step, w.when(step < part.steps):
                with w.when(self.copies), w.when(self.elected):
                    self._copy(at, part.first + step, part.before + step)
                with w.when(self.multiplies):
                    self._multiply(sums, step, part.before + step)
            with w.when(self.multiplies):
                w.emit(WarpgroupMmaWait(0))
                self._release(part.before + (part.steps - 1))
                if s.unit_k_iters >= self.steps:
                    with w.when(Compare(CompareOp.EQ, part.steps, index(self.steps))):
                        self.results.write(sums, self._of_group(at), {})
                with w.when(part.steps < self.steps):
                    self.results.stage_sums(sums, self.parts, (part.slot(self.worker),))

    def _add_up(self) -> None:
        """Sums of one tile from all blocks that share it: each stages its own and stores a part of the outputs."""
        s, w = self.s, self.w
        layout = Layout((s.mma_n + PARTIAL_PADDING, 1))
        partials = w.allocate("partials", (s.tile_m, s.mma_n), float32, MemoryScope.SHARED, layout)
        with w.when(self.multiplies):
            self.results.stage_sums(self.sums[0], partials)
        w.barrier(SyncScope.CLUSTER)
        at, first = self.grid.place(self.worker, self.of_tile), self.of_tile * s.split_k
        self.results.add_up(partials, at, first, self.of_k, s.split_k, s.warps * WARP_LANES)

    def _of_group(self, at: Mapping[str, Expr]) -> dict[str, Expr]:
        """Where the rows of this thread's warpgroup begin in the tile at ``at``."""
        own = 0 if self.s.ping_pong else self.warp // WARPGROUP_WARPS * (WGMMA_M * self.s.atoms_m)
        return {**at, "m": at["m"] + own}

    # --- one step

    def _copy(self, at: Mapping[str, Expr], step: Expr, count: Expr) -> None:
        """Start the copies of one step; what lies outside of the tensors becomes zeros."""
        s, w = self.s, self.w
        stage, parity = count % s.stages, (count // s.stages) % 2
        w.emit(MbarrierWait(self.free, stage, index(1) - parity))
        w.emit(MbarrierArriveExpectTx(self.full, stage, self.left.bytes + self.right.bytes))
        place = self._in_turn_of_batch(at, step)
        if s.split_k > 1:  # neighbours along k at about the same time: they lie in the same pages of memory
            place = place * s.split_k + self.of_k
        for slab in range(s.k_atoms):
            here = {**at, "k": (place * s.k_atoms + slab) * SWIZZLE_128B_ELEMENTS}
            for ring in (self.left, self.right):
                for box in ring.boxes(here):
                    self.w.emit(box.copied_to(ring, (stage, index(slab)), self.full, stage))

    def _in_turn_of_batch(self, at: Mapping[str, Expr], step: Expr) -> Expr:
        """The steps of a tile, begun at another quarter of ``k`` for each of four neighbours in a batch. Rows of
        operands often lie a power of two apart; read in step, those of a whole batch would fall on few channels of
        memory at a time (19.6 us on an H200, not 18.7, for 32 products 128x128x4096)."""
        loads = (*self.left.loads, *self.right.loads)
        names = {a.name for a in self.p.batch}
        alone = all(names <= {v for i in load.indices for v in free_variables(i)} for load in loads)
        if not names or not alone or self.steps < LEAST_TURNED:
            return step
        number: Expr = index(0)
        for axis in self.p.batch:
            number = number * axis.extent + at[axis.name]
        return (step + number % TURNS * (self.steps // TURNS)) % self.steps

    def _multiply(self, sums: Buffer, step: Expr, count: Expr) -> None:
        """Start the products of a step; those of the one before are done then, and its stage is free."""
        s, w, zero = self.s, self.w, index(0)
        stage = count % s.stages
        w.emit(MbarrierWait(self.full, stage, (count // s.stages) % 2))
        own = index(0) if s.ping_pong else self.warp // WARPGROUP_WARPS * s.atoms_m
        for slab in range(s.k_atoms):
            for row in range(s.atoms_m):
                block = own + row
                a = (block * WGMMA_M, zero) if self.left.along_k else (block, zero, zero)
                b = (zero, zero) if self.right.along_k else (zero, zero, zero)
                w.emit(
                    WarpgroupMma(
                        sums,
                        (index(row), zero),
                        self.left.buffer,
                        (stage, index(slab), *a),
                        self.right.buffer,
                        (stage, index(slab), *b),
                        s.mma_n,
                        SWIZZLE_128B_ELEMENTS,
                        True if slab else Compare(CompareOp.GT, step, zero),
                        not self.left.along_k,
                        not self.right.along_k,
                    )
                )
        w.emit(WarpgroupMmaWait(s.k_atoms * s.atoms_m))
        with w.when(Compare(CompareOp.GT, step, zero)):
            self._release(count - 1)

    def _release(self, count: Expr) -> None:
        """Say that a stage may be filled again, to all blocks that do."""
        s, w = self.s, self.w
        if s.tiles_per_cluster == 1:
            with w.when(self.first):
                w.emit(MbarrierArrive(self.free, count % s.stages))
        else:
            with w.when(Compare(CompareOp.LT, self.lane, index(s.tiles_per_cluster))):
                w.emit(MbarrierArrive(self.free, count % s.stages, self.of_k + self.lane * s.split_k))


def can_lower_products(p: Gemm) -> bool:
    """Whether warpgroups take the operands, and boxes of both can be copied, if need be from copies with even rows:
    every index is one axis or a member of the batch. All weights must lie the same way."""
    a, weights = p.a.load, [o.load for o in p.all_b]
    if a is None or a.buffer.dtype.name not in ("float16", "bfloat16") or not _in_boxes(a, "m"):
        return False
    if any(b is None or b.buffer.dtype != a.buffer.dtype or not _in_boxes(b, "n") for b in weights):
        return False
    same = len({b.indices[-1] == Var("k") for b in weights if b is not None}) == 1
    return same and all(total.dtype == float32 for total in (p.accumulator, *(o.accumulator for o in p.others)))


def _in_boxes(load: Load, axis: str) -> bool:
    if not 2 <= len(load.buffer.shape) <= 5 or load.indices[-1] not in (Var("k"), Var(axis)):
        return False
    plain = [i for i in load.indices if i in (Var("k"), Var(axis))]
    others = [i for i in load.indices if free_variables(i) & {"k", axis}]
    return len(plain) == len(others) == 2 and len(set(plain)) == 2
