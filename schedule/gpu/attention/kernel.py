"""Writes the kernel of attention on Hopper: warp roles, and the persistent loop over tiles of queries.

Warps are specialised: a producer warpgroup, which gives its registers away, loads for one to three consumer
warpgroups. Each of those has 64 queries of the tile, or two have the same ones and share the columns of V. For few
queries and many keys, several CTAs share the keys of a tile, and a second launch combines what they found.
"""

from ....core.dtypes import INDEX, int32
from ....ir.buffer import MemoryScope
from ....ir.expr import Cast, Expr, Load, const, index, minimum
from ....ir.gpu.ordered_sequence import OrderedSequenceStart
from ....ir.gpu.setmaxnreg import SetMaxRegisters
from ....ir.stmt import Kernel
from ...loop_nest.nest import KERNEL_NAME
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter
from ..launch_axes import warp_axes
from .epilogue import AttentionEpilogue
from .mainloop import AttentionMainloop
from .partials import AttentionPartials
from .roles import AttentionRoles
from .sizes import AttentionSizes, warpgroup_registers
from .tile_scheduler import AttentionTileScheduler


def lower_attention(p: Attention, s: AttentionSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    w = FreshNameWriter(p.names)
    scheduler = AttentionTileScheduler(p, s)
    partials = AttentionPartials(w, scheduler) if s.split_kv > 1 else None
    axes = warp_axes(s.blocks, s.warps, block="cta")
    count, once = _dynamic_ctas(scheduler), _read_once(scheduler)
    with w.launch(KERNEL_NAME, axes, count=count, min_blocks=1, evict_first=once) as (cta, warp, lane):
        roles = AttentionRoles(warp, lane, s.consumer_warpgroups, s.column_warpgroups)
        mainloop = AttentionMainloop(w, p, s, roles)
        epilogue = AttentionEpilogue(w, p, roles, mainloop.q.buffer, mainloop.q_barriers.empty)
        with w.when(roles.elected):
            mainloop.initialise_barriers()
        w.barrier()
        of_producer, of_consumer = warpgroup_registers(p)[s.consumer_warpgroups]
        if of_consumer:
            with w.when(roles.produces):
                w.emit(SetMaxRegisters(of_producer, increase=False))
            with w.when(roles.consumes):
                w.emit(SetMaxRegisters(of_consumer, increase=True))
        if s.ping_pong:
            with w.when(roles.consumes):
                w.emit(OrderedSequenceStart(s.consumer_warpgroups))
        if partials is not None:
            tile, rank = cta // scheduler.sharers, cta % scheduler.sharers
            at = scheduler.origin(tile)
            blocks = scheduler.share(scheduler.key_blocks(at), rank)
            mainloop.run(at, blocks, index(0), index(0), epilogue.release, rank)
            with w.when(roles.consumes):
                partials.store(mainloop.sums, mainloop.softmax, at, rank)
        else:
            _tiles(w, scheduler, mainloop, epilogue, cta)
    if partials is not None:
        partials.write_combine()
    workspace = () if partials is None else partials.buffers
    return Kernel(KERNEL_NAME, p.inputs, p.outputs, workspace, w.finish())


def _read_once(scheduler: AttentionTileScheduler) -> tuple[str, ...]:
    """Return the tensors of keys and values, where each of their blocks is read by one CTA alone."""
    p, s = scheduler.p, scheduler.s
    if s.split_kv == 1 or s.q_tiles > 1:
        return ()
    return p.of_one_head(p.key, p.v)


def _dynamic_ctas(scheduler: AttentionTileScheduler) -> Expr | None:
    """Return how many CTAs a call has; None where that is always the same."""
    p, s = scheduler.p, scheduler.s
    if s.split_kv > 1:
        return scheduler.tiles * scheduler.sharers if p.is_dynamic else None
    if p.dynamic_m is None:
        return None
    return minimum(scheduler.tiles, index(s.blocks)) if s.persistent else scheduler.tiles


def _tiles(
    w: FreshNameWriter,
    scheduler: AttentionTileScheduler,
    mainloop: AttentionMainloop,
    epilogue: AttentionEpilogue,
    cta: Expr,
) -> None:
    """The loop over the tiles of a CTA. Where tiles make different numbers of steps, those so far are counted."""
    p, s = scheduler.p, scheduler.s
    done = None
    if s.tile_iterations > 1 and p.bounds:
        done = w.allocate("fills", (1,), int32, MemoryScope.REGISTER)
        w.store(done, (index(0),), const(0, int32))
    several = p.dynamic_m is not None and s.tile_iterations > 1
    end = (scheduler.tiles + (s.blocks - 1)) // s.blocks if several else None
    with w.loop("tile_iteration", s.tile_iterations) as iteration, w.when(None if end is None else iteration < end):
        tile = scheduler.tile(iteration, cta)
        may_miss = several or s.tile_iterations * s.blocks > s.tiles
        with w.when(tile < scheduler.tiles if may_miss else None):
            at = scheduler.origin(tile)
            blocks = scheduler.key_blocks(at)
            fills = iteration * blocks.steps if done is None else Cast(Load(done, (index(0),)), INDEX)
            mainloop.run(at, blocks, iteration, fills, epilogue.release, index(0))
            mainloop.normalise(blocks.steps)
            with w.when(mainloop.roles.consumes):
                epilogue.store(mainloop.sums, at, iteration)
            if done is not None:
                w.store(done, (index(0),), Load(done, (index(0),)) + Cast(blocks.steps, int32))
    if s.q_stages > 1:
        with w.when(mainloop.roles.consumes):
            epilogue.end()
