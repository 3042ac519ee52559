"""Writes the kernel of a scatter to few elements, such as a histogram, each of which a thread has a copy of.

    for terms of the thread:    copies[key(term), thread] += term            # in shared memory
    barrier
    partial[block, key] = sum(copies[key, t] for t in threads)               # beginning at another t for each key

A second launch adds up what all blocks have found, in their order. Nobody else writes the copies of a thread, so that
there are no atomics.
"""

from dataclasses import dataclass

from ....core.dtypes import INDEX
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    WARP_LANES,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Select,
    index,
    logical_and,
    minimum,
)
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis, Kernel
from ...loop_nest.nest import KERNEL_NAME
from ...problems.scatter import ScatterProblem
from ...space.columns import Size
from ...tile.accumulation import Accumulation
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ..launch_axes import warp_axes
from .term_loads import TermLoads

JOINING_WARPS, JOINED_AT_ONCE = 8, 8
"""Warps that share the blocks of the first launch when these are joined, and how many a thread loads at once."""


@dataclass(frozen=True, slots=True)
class PrivateScatterSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``threads``, ``vector_width``, ``unroll`` and ``ctas_per_sm`` are the knobs. ``parts``: blocks that share the terms
    of a batch. ``blocks``: blocks of the first launch. ``trips``: how often a thread loads ``unroll`` vectors of terms.
    ``registers``: registers of a thread, roughly. ``shared_bytes``: shared memory of a block. ``resident``: how many
    blocks a multiprocessor runs at once.
    """

    threads: Size
    vector_width: Size
    unroll: Size
    ctas_per_sm: Size
    parts: Size
    blocks: Size
    trips: Size
    registers: Size
    shared_bytes: Size
    resident: Size


def private_scatter_kernel(problem: ScatterProblem, sizes: PrivateScatterSizes) -> Kernel:
    """Return the kernel of one setting."""
    return _PrivateKernelWriter(problem, sizes).kernel()


class _PrivateKernelWriter:
    def __init__(self, problem: ScatterProblem, sizes: PrivateScatterSizes) -> None:
        self.p, self.s = problem, sizes
        self.how: Accumulation = problem.accumulation
        self.dtype = self.how.accumulator_dtype
        (self.identity,) = self.how.identity
        self.w = FreshNameWriter(problem.names)
        self.partial = Buffer(self.w.fresh("partial"), (problem.batches, sizes.parts, problem.keys), self.dtype)

    def kernel(self) -> Kernel:
        self._reduce_parts()
        self._join_parts()
        outputs = tuple(dict.fromkeys(self.p.workload.output_buffers))
        return Kernel(KERNEL_NAME, self.p.workload.inputs, outputs, (self.partial,), self.w.finish())

    def _combine(self, a: Expr, b: Expr) -> Expr:
        return self.how.combine([a], [b])[0]

    def _reduce_parts(self) -> None:
        w, s, p = self.w, self.s, self.p
        axes = [("block", s.blocks, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        loads = TermLoads(w, p, s)
        with w.launch(KERNEL_NAME, axes, min_blocks=s.resident) as (block, thread):
            batch, part = block // s.parts, block % s.parts
            copies = w.allocate("copies", (p.keys, s.threads), self.dtype, MemoryScope.SHARED)
            with w.loop("key", p.keys) as key:
                w.store(copies, (key, thread), self.identity)
            with w.loop("trip", s.trips) as trip:
                keys, (values,) = loads.load(batch, part, trip, thread)
                with w.unrolled("u", s.unroll) as u, w.unrolled("lane", s.vector_width) as lane:
                    number = Cast(Load(keys, (u, lane)), INDEX)
                    with w.when(number >= 0):
                        own = (loads.inside(number), thread)
                        w.store(copies, own, self._combine(Load(copies, own), Load(values, (u, lane))))
            w.barrier()
            total = w.allocate("total", (), self.dtype, MemoryScope.REGISTER)
            with w.loop("n", -(-p.keys // s.threads)) as n:
                key = n * s.threads + thread
                with w.when(key < p.keys if p.keys % s.threads else None):
                    w.store(total, (), self.identity)
                    with w.loop("t", s.threads) as t:  # lanes read from different banks
                        copy = Load(copies, (loads.inside(key), (t + thread) % s.threads))
                        w.store(total, (), self._combine(Load(total, ()), copy))
                    w.store(self.partial, (batch, part, loads.inside(key)), Load(total, ()))

    def _join_parts(self) -> None:
        """Warps share the parts, each a run of them. The first one combines what they have found."""
        w, s, p = self.w, self.s, self.p
        columns, run = p.batches * p.keys, -(-s.parts // JOINING_WARPS)
        axes = warp_axes(-(-columns // WARP_LANES), JOINING_WARPS, block="columns")
        with w.launch("join_parts", axes) as (block, warp, lane):
            column = block * WARP_LANES + lane
            inside = minimum(column, index(columns - 1))
            batch, key = inside // p.keys, inside % p.keys
            total = w.allocate("total", (), self.dtype, MemoryScope.REGISTER)
            w.store(total, (), self.identity)
            loaded = w.allocate("loaded", (JOINED_AT_ONCE,), self.dtype, MemoryScope.REGISTER)
            with w.loop("turn", -(-run // JOINED_AT_ONCE)) as turn:
                with w.unrolled("n", JOINED_AT_ONCE) as n:
                    number = turn * JOINED_AT_ONCE + n
                    part = warp * run + number
                    found = Load(self.partial, (batch, minimum(part, index(s.parts - 1)), key))
                    exists = logical_and(number < run, part < s.parts)
                    w.store(loaded, (n,), Select(exists, found, self.identity))
                with w.unrolled("n", JOINED_AT_ONCE) as n:
                    w.store(total, (), self._combine(Load(total, ()), Load(loaded, (n,))))
            runs = w.allocate("runs", (JOINING_WARPS, WARP_LANES), self.dtype, MemoryScope.SHARED)
            w.store(runs, (warp, lane), Load(total, ()))
            w.barrier()
            with w.when(logical_and(Compare(CompareOp.EQ, warp, index(0)), column < columns)):
                with w.loop("other", JOINING_WARPS - 1) as other:
                    w.store(total, (), self._combine(Load(total, ()), Load(runs, (other + 1, lane))))
                at = {**axis_indices(batch, p.scatter.batch), **axis_indices(key, p.scatter.keys)}
                at |= {a.name: index(0) for a in p.scatter.rest}
                result = self.how.result([Load(total, ())])
                for output in p.outputs:
                    value = substitute(p.body_of(output, result), at)
                    w.store(output.tensor, [at[a.name] for a in p.scatter.stage.axes], value)
