"""Writes the kernel of a large product on Hopper and Blackwell: warp roles, the persistent loop over tiles, and how
CTAs share a tile.

Warps are specialised: one producer (a warp, or a warpgroup that gives its registers away) loads for one to three
consumer warpgroups. A cluster of CTAs works on neighbouring tiles, and each of them loads a part of what they share.
The clusters are persistent: each works through several tiles. Where rows lie in groups,
a launch before this one lists the tiles (``grouped``). There are four ways to share out the work:

    cooperative    all consumer warpgroups of a CTA share a tile
    ping-pong      each has tiles of its own; while one stores its tile, another one multiplies
    split-K        the CTAs of a cluster share k of one tile and add up their accumulators through shared memory
    stream-K       CTAs share k of the last tiles, each of which a second launch adds up
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import WARP_LANES, Cast, Const, Expr, Load, Select, index, minimum
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierInit, MbarrierWait
from ....ir.gpu.setmaxnreg import SetMaxRegisters
from ....ir.gpu.tcgen05 import TENSOR_LANES, TensorMemoryAllocate, TensorMemoryDeallocate
from ....ir.gpu.wgmma import WGMMA_M, WarpgroupMmaWait
from ....ir.stmt import Kernel
from ....te.functions import equal
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter
from ..launch_axes import warp_axes
from ..split_k import TileSlice, partial_at, reduce_tile, vector_width
from .block_scales import pack_scales
from .epilogue import Accumulators, Epilogue
from .fragments import FragmentEpilogue, FragmentMainloop
from .grouped import ROW_END, GroupedTileScheduler, grouped_tile_scheduler
from .mainloop import GemmMainloop, StageBarriers, WarpRoles, WgmmaMainloop
from .mma_atom import promoted_k_atoms, wgmma_atom
from .promotion import SHARERS, Promotion, PromotionScales
from .repack import repack, repack_views
from .shifted_rows import copied_first
from .sizes import WARPGROUP_WARPS, GemmSizes, partial_padding
from .stream_k import StreamK, WorkUnit, write_fixup
from .tensor_memory import Tcgen05Mainloop, TensorAccumulators
from .tile_scheduler import DynamicTileScheduler, TileScheduler, bounded

Preparation = Callable[[FreshNameWriter, Gemm], tuple[Gemm, tuple[Buffer, ...]]]
"""Writes what comes ahead of the product, and gives the product on what that leaves, and the workspace for it."""
EpilogueMaker = Callable[[FreshNameWriter, Gemm, GemmSizes[int], WarpRoles, bool], Epilogue]


def lower_gemm(
    gemm: Gemm,
    name: str,
    sizes: GemmSizes[int],
    prepare: Preparation = repack_views,
    epilogue: EpilogueMaker | None = None,
) -> Kernel:
    """Return the kernel of one setting. ``epilogue``: what writes it, where it is not the usual one."""
    usual = FragmentEpilogue if gemm.a_in_registers else Epilogue
    return _GemmKernelWriter(gemm, name, sizes, prepare, epilogue or usual).kernel()


class _GemmKernelWriter:
    def __init__(
        self, gemm: Gemm, name: str, sizes: GemmSizes[int], prepare: Preparation, epilogue: EpilogueMaker
    ) -> None:
        self.s, self.name, self.make_epilogue = sizes, name, epilogue
        self.w = FreshNameWriter(gemm.names)
        if not sizes.repacked:
            prepare = partial(repack, as_views=True, only=copied_first(gemm))
        self.gemm, self.workspace = prepare(self.w, gemm)
        self.gemm, packed = pack_scales(self.w, self.gemm)
        self.workspace = (*self.workspace, *packed)
        s, self.atom, self.promoted = sizes, wgmma_atom(gemm), promoted_k_atoms(gemm)
        order = (s.tile_m, s.tile_n, s.group_m, s.cluster_m, s.cluster_n)
        self.scheduler = TileScheduler(self.gemm, *order)
        if gemm.dynamic is not None:
            self.scheduler = DynamicTileScheduler(self.gemm, *order)
        if gemm.groups is not None:
            self.scheduler = grouped_tile_scheduler(self.w, self.gemm, *order)
        self.stream_k: StreamK | None = None
        if s.unit_rounds:
            tiles = self.scheduler.cluster_tiles
            self.stream_k = StreamK(tiles, s.k_iters, s.clusters, s.tile_iterations, s.unit_k_iters)

    def kernel(self) -> Kernel:
        s, w, gemm, workspace = self.s, self.w, self.gemm, self.workspace
        if self.stream_k is not None:
            self.partials = self.stream_k.allocate_partials(w, gemm, s.tile_m, s.mma_n, self.atom.accumulator)
            workspace = (*workspace, self.partials)
        if isinstance(self.scheduler, GroupedTileScheduler):
            workspace = (*workspace, self.scheduler.entries, self.scheduler.count)
            self.scheduler.write_list(w)
        count = None
        if isinstance(self.scheduler, DynamicTileScheduler):
            count = self.clusters
        axes = warp_axes(s.clusters, s.warps, s.cluster_size, block="cluster", rank="cta")
        with w.launch(self.name, axes, count=count, min_blocks=s.ctas_per_sm) as numbers:
            self._launch(numbers[0], numbers[1] if s.cluster_size > 1 else index(0), numbers[-2], numbers[-1])
        if self.stream_k is not None:
            write_fixup(w, gemm, self.scheduler, self.stream_k, self.partials)
        return Kernel(self.name, gemm.inputs, tuple(r.tensor for r in gemm.results), workspace, w.finish())

    def _launch(self, cluster: Expr, cta: Expr, warp: Expr, lane: Expr) -> None:
        s, w = self.s, self.w
        self.cluster, self.roles = cluster, WarpRoles(warp, lane, s.consumer_warpgroups)
        self.tile, self.k_rank = (cta // s.split_k, cta % s.split_k) if s.split_k > 1 else (cta, index(0))
        barriers = StageBarriers(w, s.stages)
        if s.ping_pong:
            self.order = w.allocate("order", (s.consumer_warpgroups,), INDEX, MemoryScope.SHARED)
        # with ping-pong each warpgroup has a buffer of its own, so that none stays alive while another one is filled
        buffers = s.consumer_warpgroups if s.ping_pong else 1
        self.accumulators: list[Accumulators] = []
        if s.tensor_columns:
            self.accumulators += self._allocate_tensor_memory()
        else:
            self.accumulators += [self._allocate_accumulators("accumulators") for _ in range(buffers)]
        if self.promoted:
            atoms = 1 if self.promoted == 1 else s.atoms_m
            self.block_sums = [self._allocate_accumulators("block_sums", atoms) for _ in range(buffers)]
            self.promotion = Promotion(w, self.gemm, s, self.roles)
        with w.scope():
            loop = FragmentMainloop if self.gemm.a_in_registers else WgmmaMainloop
            self.mainloop: GemmMainloop[Any] = (Tcgen05Mainloop if s.tensor_columns else loop)(
                w, self.gemm, s, self.scheduler, self.roles, barriers, self.tile, self.k_rank
            )
            several_tiles = self.scheduler.cluster_tiles > s.clusters
            self.epilogue = self.make_epilogue(w, self.gemm, s, self.roles, several_tiles)
            self.epilogue.allocate_stages(self.mainloop.a)
            if not several_tiles and not self.workspace and self.stream_k is None and self.gemm.groups is None:
                self.mainloop.prefetch(cluster)
            self._initialise()
            if self.mainloop.k_iterations.differ:
                self.fills = w.allocate("fills", (1,), int32, MemoryScope.REGISTER)
                w.store(self.fills, (index(0),), Const(0, int32))
            self._tiles()
            with w.when(self.roles.consumes):
                self.epilogue.wait_for_stores()
            if s.split_k > 1:
                w.barrier()
            if s.tensor_columns:
                self._leave_tensor_memory()
        if s.split_k > 1:
            with w.scope():  # in the place of the stages
                self._reduce_split_k()
        if s.cluster_size > 1:
            w.barrier(SyncScope.CLUSTER)

    def _allocate_tensor_memory(self) -> list[TensorAccumulators]:
        """Allocate columns for all accumulators of the CTA. With ping-pong each warpgroup has its own tiles."""
        s, w = self.s, self.w
        shape = (TENSOR_LANES, s.tensor_columns)
        self.address = w.allocate("address", (1,), int32, MemoryScope.SHARED)
        self.tensor_memory = w.allocate("accumulators", shape, self.atom.accumulator, MemoryScope.TENSOR)
        self.scale_memory: Buffer | None = None
        if s.scale_columns:
            self.scale_memory = w.allocate("scales", (TENSOR_LANES, s.scale_columns), int32, MemoryScope.TENSOR)
        warpgroups = [index(n) for n in range(s.consumer_warpgroups)] if s.ping_pong else [self.roles.warpgroup]
        return [TensorAccumulators(self.tensor_memory, n * s.mma_n, n, self.scale_memory) for n in warpgroups]

    @property
    def _tensor_buffers(self) -> list[Buffer]:
        return [self.tensor_memory, *([] if self.scale_memory is None else [self.scale_memory])]

    def _leave_tensor_memory(self) -> None:
        """Deallocate the columns, and wait for what arrives from the rest of the cluster."""
        s, w, scheduler = self.s, self.w, self.scheduler
        if s.cluster_size > 1:
            assert isinstance(self.mainloop, Tcgen05Mainloop)
            tiles: Expr = index(scheduler.cluster_tiles)
            if isinstance(scheduler, DynamicTileScheduler):
                tiles = scheduler.dynamic_cluster_tiles
            self.mainloop.await_releases((tiles - self.cluster + (self.clusters - 1)) // self.clusters)
        for buffer in self._tensor_buffers:
            w.emit(TensorMemoryDeallocate(buffer))

    def _allocate_accumulators(self, name: str, atoms: int = 0) -> Buffer:
        shape = (atoms or self.s.atoms_m, self.s.mma_n // 2)
        return self.w.allocate(name, shape, self.atom.accumulator, MemoryScope.REGISTER)

    def _initialise(self) -> None:
        """Initialise all mbarriers, and move registers from the producer to the consumers."""
        s, w, roles = self.s, self.w, self.roles
        with w.when(roles.elected):
            self.mainloop.initialise_barriers()
            if s.ping_pong:
                for warpgroup in range(s.consumer_warpgroups):
                    w.emit(MbarrierInit(self.order, index(warpgroup), WARPGROUP_WARPS))
        if s.tensor_columns:
            for buffer in self._tensor_buffers:
                w.emit(TensorMemoryAllocate(buffer, self.address))
        w.barrier(SyncScope.CLUSTER if s.cluster_size > 1 else SyncScope.BLOCK)
        if s.consumer_registers:
            with w.when(roles.produces):
                w.emit(SetMaxRegisters(s.producer_registers, increase=False))
            with w.when(roles.consumes):
                w.emit(SetMaxRegisters(s.consumer_registers, increase=True))

    # --- tiles

    def _tiles(self) -> None:
        """The persistent loop: all tiles of this CTA, one iteration after the other."""
        s, w = self.s, self.w
        if s.tile_iterations:
            with w.loop("tile_iteration", s.tile_iterations) as iteration, w.when(self._iterates(iteration)):
                if not s.ping_pong:
                    self._tile(iteration, self.roles.consumes)
                else:
                    for warpgroup in range(s.consumer_warpgroups):
                        self._ping_pong_tile(iteration, warpgroup)
        if self.stream_k is not None:
            with (
                w.loop("round", self.stream_k.rounds) as number,
                w.when(self.stream_k.exists(self.cluster, number)),
            ):
                self._stream_k_unit(self.stream_k, number)

    @property
    def clusters(self) -> Expr:
        """How many clusters there are."""
        if isinstance(self.scheduler, DynamicTileScheduler):
            return self.scheduler.dynamic_clusters(self.s.clusters, self.s.tiles_per_iteration)
        return index(self.s.clusters)

    def _iterates(self, iteration: Expr) -> Expr | None:
        """Return whether a CTA has a tile in an iteration, of a dynamic number of them; None where it has one in
        all."""
        of_iteration = self.clusters * self.s.tiles_per_iteration
        if not isinstance(self.scheduler, DynamicTileScheduler) or self.s.tile_iterations == 1:
            return None
        return iteration < (self.scheduler.dynamic_cluster_tiles - self.cluster + (of_iteration - 1)) // of_iteration

    def _ping_pong_tile(self, iteration: Expr, warpgroup: int) -> None:
        """The tile of one warpgroup. It may begin once the warpgroup before it has issued its last wgmma; the first
        warpgroup begins at once."""
        s = self.s
        mine = equal(self.roles.warpgroup, warpgroup)
        parity = (iteration + (0 if warpgroup else 1)) % 2
        self._tile(iteration * s.consumer_warpgroups + warpgroup, mine, warpgroup, parity)

    def _tile(self, number: Expr, consumes: Expr, warpgroup: int = 0, parity: Expr | None = None) -> None:
        """The tile that is this CTA's ``number``-th. With ping-pong, ``parity`` is that of the order barrier."""
        s, w, mainloop, accumulators = self.s, self.w, self.mainloop, self.accumulators[warpgroup]
        cluster_tile = number * self.clusters + self._cluster_in(number)
        may_miss = s.tile_iterations * s.tiles_per_iteration * s.clusters > self.scheduler.cluster_tiles
        may_miss |= self.gemm.groups is not None
        if self.gemm.dynamic is not None:  # the first tile of an iteration exists
            may_miss = s.tiles_per_iteration > 1
        with w.when(self.scheduler.exists(cluster_tile) if may_miss else None):
            loaded = self.scheduler.read_origin(w, cluster_tile, self.tile, self.roles.elected)
            at = self.scheduler.read_origin(w, cluster_tile, self.tile, consumes)
            if parity is not None:
                with w.when(consumes):
                    w.emit(MbarrierWait(self.order, index(warpgroup), parity))
            before, count = self._fills_before(number), mainloop.k_iterations.count(at)
            if self.promoted:
                self._promoted_iterations(at, before, consumes, warpgroup)
            else:
                with w.loop("k_iter", s.k_iters) as k_iter, w.when(None if count is None else k_iter < count):
                    mainloop.load(loaded, k_iter, before + k_iter)
                    with w.when(consumes):
                        mainloop.multiply(accumulators, at, k_iter, before + k_iter, self._has_rows(at))
            with w.when(consumes):
                if parity is not None:
                    with w.when(self.roles.first_lane):
                        w.emit(MbarrierArrive(self.order, index((warpgroup + 1) % s.consumer_warpgroups)))
                own = self._warpgroup_origin(at)
                sources = self.epilogue.load_first_sources(own)
                if not self.promoted:
                    mainloop.finish(accumulators, number, before + (s.k_iters if count is None else count) - 1)
                if s.split_k == 1:
                    with w.when(self._has_rows(at)):
                        self.epilogue.store(accumulators, own, sources)
                if s.tensor_columns and s.tile_iterations > 1:  # all warps have loaded what the next tile overwrites
                    w.barrier(SyncScope.WARPGROUP)
            if count is not None:
                w.store(self.fills, (index(0),), Cast(before + count, int32))

    def _cluster_in(self, number: Expr) -> Expr:
        """Return the place of the CTA's cluster among those that work on their ``number``-th tiles. Where tiles have
        different numbers of k iterations, it goes to and fro: after the long tiles of one phase, a cluster has short
        ones of another."""
        if not self.mainloop.k_iterations.differ:
            return self.cluster
        return Select(equal(number % 2, 0), self.cluster, self.clusters - 1 - self.cluster)

    def _fills_before(self, number: Expr) -> Expr:
        """Return how many fills the CTA makes before its ``number``-th tile: those that were counted, where tiles have
        different numbers of them."""
        if not self.mainloop.k_iterations.differ:
            return number * self.s.k_iters
        # the bounds let 32 bits hold what is computed from them
        return bounded(Cast(Load(self.fills, (index(0),)), INDEX), self.s.stage_fills)

    @property
    def _wgmma_mainloop(self) -> WgmmaMainloop:
        assert isinstance(self.mainloop, WgmmaMainloop)
        return self.mainloop

    def _in_registers(self, warpgroup: int) -> Buffer:
        accumulators = self.accumulators[warpgroup]
        assert isinstance(accumulators, Buffer)
        return accumulators

    def _promoted_iterations(
        self,
        at: Mapping[str, Expr],
        fills_before: Expr,
        consumes: Expr,
        warpgroup: int = 0,
        unit: WorkUnit | None = None,
    ) -> None:
        """The k iterations of a tile, or of a stream-K ``unit`` of it, block after block. The accumulators of each
        block are promoted."""
        s, w, mainloop, block_sums = self.s, self.w, self._wgmma_mainloop, self.block_sums[warpgroup]
        accumulators = self._in_registers(warpgroup)
        most, size = s.unit_k_iters if unit else s.k_iters, self.promoted
        first: Expr = index(0) if unit is None else unit.first_k_iter
        count: Expr = index(s.k_iters) if unit is None else unit.k_iters
        scales = self.promotion.allocate_scales()

        def load_scales(k_iter: Expr) -> None:
            if scales is not None:
                k = mainloop.k_iterations.k_place(at, first + k_iter + self.roles.lane % SHARERS)
                self.promotion.load_scales(scales, {**self._warpgroup_origin(at), "k": k})

        def take_scales(k_iter: Expr) -> Expr | None:
            if scales is None:
                return None
            sharer = k_iter % SHARERS
            with w.when(equal(sharer, 0)):
                self.promotion.multiply_scales(scales)
                load_scales(k_iter + SHARERS)
            return self.promotion.take_scales(scales, sharer)

        with w.when(consumes):
            self.promotion.clear(accumulators)
            load_scales(index(0))
        with w.loop("block", -(-most // size)) as block:
            begin = block * size
            with w.when(None if unit is None else begin < count):
                with w.loop("k_iter", size) as k_iter:
                    ragged = unit is not None or s.k_iters % size > 0
                    with w.when(begin + k_iter < count if ragged else None):
                        fill = fills_before + begin + k_iter
                        mainloop.load(at, first + begin + k_iter, fill)
                        with w.when(consumes):
                            if size > 1:
                                mainloop.multiply(block_sums, at, k_iter, fill)
                            else:
                                mainloop.await_stage(fill)
                with w.when(consumes):
                    last = fills_before + minimum(begin + size, count) - 1
                    take = partial(take_scales, begin)
                    self._promote(accumulators, block_sums, at, last, scales, take)

    def _promote(
        self,
        accumulators: Buffer,
        block_sums: Buffer,
        at: Mapping[str, Expr],
        last_fill: Expr,
        scales: PromotionScales | None,
        take_scales: Callable[[], Expr | None],
    ) -> None:
        """Add the sums of a block whose last stage is that of ``last_fill``. A block of one stage is multiplied here,
        atom after atom. ``take_scales`` takes the scales of the block, and returns what is known then. It does so while
        the first atom is multiplied: ahead of its wgmma, addresses and waits would delay that."""
        s, w, mainloop = self.s, self.w, self._wgmma_mainloop
        parts = [range(n, n + 1) for n in range(s.atoms_m)] if self.promoted == 1 else [range(s.atoms_m)]
        for atoms in parts:
            if self.promoted == 1:
                mainloop.issue(block_sums, at, last_fill, False, atoms)
            taken = take_scales() if atoms.start == 0 else None
            w.emit(WarpgroupMmaWait(0, after=taken))
            if atoms.stop == s.atoms_m:
                mainloop.release(last_fill)
            self.promotion.add(accumulators, block_sums, scales, atoms)

    def _stream_k_unit(self, stream_k: StreamK, number: Expr) -> None:
        """What this CTA does of a tile that several share: it stores the partial sums."""
        s, w, mainloop, accumulators = self.s, self.w, self._wgmma_mainloop, self._in_registers(0)
        unit = stream_k.work_unit(self.cluster, number)
        at = self.scheduler.origin(unit.tile, index(0))
        if self.promoted:
            self._promoted_iterations(at, unit.fills_before, self.roles.consumes, unit=unit)
        else:
            ragged = s.k_iters % s.unit_k_iters > 0
            with w.loop("k_iter", s.unit_k_iters) as k_iter, w.when(k_iter < unit.k_iters if ragged else None):
                mainloop.load(at, unit.first_k_iter + k_iter, unit.fills_before + k_iter)
                with w.when(self.roles.consumes):
                    fill = unit.fills_before + k_iter
                    mainloop.multiply(accumulators, at, k_iter, fill, first=unit.first_k_iter)
        with w.when(self.roles.consumes):
            if not self.promoted:
                w.emit(WarpgroupMmaWait(0))
                mainloop.release(unit.fills_before + (unit.k_iters - 1))
            self.epilogue.store_partials(accumulators, self.partials, (unit.slot,))

    def _reduce_split_k(self) -> None:
        """Every CTA that shares a tile puts its accumulators into shared memory. Then each stores some of the rows."""
        s, w = self.s, self.w
        sides = partial_at(self.gemm, s.tile_m, s.mma_n)
        layout = Layout((sides[1] + partial_padding(self.gemm), 1))
        partials = w.allocate("partials", sides, self.atom.accumulator, MemoryScope.SHARED, layout)
        with w.when(self.roles.consumes):
            self.epilogue.store_partials(self._in_registers(0), partials)
        w.barrier(SyncScope.CLUSTER)
        origin, first = self.scheduler.origin(self.cluster, self.tile), self.tile * s.split_k
        threads = s.warps * WARP_LANES
        own = TileSlice(self.gemm, origin, self.k_rank, s.split_k, self.roles.thread, threads, first)
        reduce_tile(w, own, partials, vector_width(self.gemm))

    def _has_rows(self, at: Mapping[str, Expr]) -> Expr | None:
        """Return whether the tile at ``at`` has rows of this thread's warpgroup; None where each tile has."""
        s = self.s
        if ROW_END not in at or s.tile_m * s.cluster_m == WGMMA_M * s.atoms_m:
            return None
        return self._warpgroup_origin(at)["m"] < at[ROW_END]

    def _warpgroup_origin(self, at: Mapping[str, Expr]) -> dict[str, Expr]:
        """Return where the rows of this thread's warpgroup begin in the tile at ``at``."""
        own = 0 if self.s.ping_pong else self.roles.warpgroup * (WGMMA_M * self.s.atoms_m)
        return {**at, "m": at["m"] + own}
