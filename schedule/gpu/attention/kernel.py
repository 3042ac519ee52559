"""The kernel of attention on Hopper: warp roles, and the persistent loop over tiles of queries.

Warps are specialised: a producer warpgroup, which gives its registers away, loads for one to three consumer
warpgroups. Each of those has 64 queries of the tile.
"""

from ....core.dtypes import INDEX, int32
from ....ir.buffer import MemoryScope
from ....ir.expr import WARP_LANES, Cast, Compare, CompareOp, Load, const, index
from ....ir.gpu.ordered_sequence import OrderedSequenceStart
from ....ir.gpu.setmaxnreg import SetMaxRegisters
from ....ir.stmt import HardwareAxis, Kernel
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter
from ..gemm.mainloop import WarpRoles
from .epilogue import AttentionEpilogue
from .mainloop import AttentionMainloop
from .sizes import CONSUMER_REGISTERS, PRODUCER_REGISTERS, AttentionSizes
from .tile_scheduler import TileScheduler


def lower_attention(p: Attention, name: str, s: AttentionSizes[int]) -> Kernel:
    """The kernel of one setting."""
    w = FreshNameWriter(p.names)
    axes = [
        ("cta", s.ctas, HardwareAxis.GRID_X),
        ("warp", s.warps, HardwareAxis.WARP),
        ("lane", WARP_LANES, HardwareAxis.LANE),
    ]
    with w.launch(name, axes, min_blocks=1) as (cta, warp, lane):
        roles = WarpRoles(warp, lane, s.consumer_warpgroups)
        mainloop = AttentionMainloop(w, p, s, roles)
        epilogue = AttentionEpilogue(w, p, roles, mainloop.q.buffer, mainloop.q_barriers.empty)
        with w.when(roles.elected):
            mainloop.initialise_barriers()
        w.barrier()
        if CONSUMER_REGISTERS[s.consumer_warpgroups]:
            with w.when(roles.produces):
                w.emit(SetMaxRegisters(PRODUCER_REGISTERS[s.consumer_warpgroups], increase=False))
            with w.when(roles.consumes):
                w.emit(SetMaxRegisters(CONSUMER_REGISTERS[s.consumer_warpgroups], increase=True))
        if s.ping_pong:
            with w.when(roles.consumes):
                w.emit(OrderedSequenceStart(s.consumer_warpgroups))
        counts = s.tile_iterations > 1 and bool(p.bounds)
        done = w.allocate("fills", (1,), int32, MemoryScope.REGISTER) if counts else None
        if done is not None:
            w.store(done, (index(0),), const(0, int32))
        with w.loop("tile_iteration", s.tile_iterations) as iteration:
            scheduler = TileScheduler(p, s)
            tile = scheduler.tile(iteration, cta)
            may_miss = s.tile_iterations * s.ctas > s.tiles
            with w.when(Compare(CompareOp.LT, tile, index(s.tiles)) if may_miss else None):
                at = scheduler.origin(tile)
                blocks = scheduler.key_blocks(at)
                fills = iteration * blocks.steps if done is None else Cast(Load(done, (index(0),)), INDEX)
                mainloop.run(at, blocks, iteration, fills, epilogue.release)
                with w.when(roles.consumes):
                    mainloop.softmax.normalise(mainloop.sums)
                    epilogue.store(mainloop.sums, at, iteration)
                if done is not None:
                    w.store(done, (index(0),), Load(done, (index(0),)) + Cast(blocks.steps, int32))
        if s.q_stages > 1:
            with w.when(roles.consumes):
                epilogue.end()
    return Kernel(name, p.inputs, (p.result.tensor,), (), w.finish())
