"""Accumulators in tensor memory, and the main loop that multiplies into it by ``tcgen05`` (sm_100a).

The operands, their stages, the barriers and the producer are those of ``mainloop``. What differs is who multiplies, and
how that ends:

    the first thread of a consumer warpgroup       all threads of it
    wait until the stage is full                   wait until its accumulators are done
    issue its tcgen05.mma                          load them subtile by subtile (``epilogue``)
    commit them to the empty barrier of the stage
    behind the last stage, commit all to the barrier ``accumulated`` of the warpgroup
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....core.dtypes import INDEX
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, index
from ....ir.gpu.mbarrier import MbarrierInit, MbarrierWait
from ....ir.gpu.tcgen05 import SCALE_ROWS, BlockScaledMma, TensorMemoryCommit, TensorMemoryMma
from ....ir.gpu.wgmma import WGMMA_M
from ....ir.stmt import Operation
from .k_atoms import multiplied_k
from .mainloop import GemmMainloop
from .sizes import warpgroup_scale_columns


@dataclass(frozen=True, slots=True)
class TensorAccumulators:
    """The accumulators of a consumer warpgroup, in columns from ``column`` on of the CTA's tensor memory ``buffer``.
    ``scales``: the tensor memory of its scales of blocks, if there are any."""

    buffer: Buffer
    column: Expr
    warpgroup: Expr
    scales: Buffer | None = None


class Tcgen05Mainloop(GemmMainloop[TensorAccumulators]):
    """The loop over k with ``tcgen05.mma``, of 64 or 128 rows for each consumer warpgroup."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        warpgroups = (self.s.consumer_warpgroups,)
        self.accumulated = self.w.allocate("accumulated", warpgroups, INDEX, MemoryScope.SHARED)

    @property
    def releases(self) -> int:
        """One thread of each warpgroup releases a stage."""
        return 1 if self.s.ping_pong else self.s.consumer_warpgroups

    def initialise_barriers(self) -> None:
        super().initialise_barriers()
        for warpgroup in range(self.s.consumer_warpgroups):
            self.w.emit(MbarrierInit(self.accumulated, index(warpgroup), 1))

    def multiply(
        self,
        accumulators: TensorAccumulators,
        at: Mapping[str, Expr],
        k_iter: Expr,
        fill: Expr,
        has_rows: Expr | None = None,
        first: Expr | None = None,
    ) -> None:
        assert has_rows is None
        w, s = self.w, self.s
        with w.when(self.roles.issues):
            self.await_stage(fill)
            goes_on = k_iter > 0
            for k_atom in range(s.k_atoms):
                for stmt in self._products(accumulators, fill % s.stages, k_atom, True if k_atom else goes_on):
                    w.emit(stmt)
            ctas = index((1 << s.cluster_size) - 1) if s.cluster_size > 1 else None
            w.emit(TensorMemoryCommit(self.barriers.empty, fill % s.stages, ctas))

    def _products(
        self, accumulators: TensorAccumulators, stage: Expr, k_atom: int, accumulates: Expr | bool
    ) -> Iterator[Operation]:
        """Yield what multiplies a k atom, behind the copies of its scales if it has any."""
        s = self.s
        first_atom = index(0) if s.ping_pong else self.roles.warpgroup * s.atoms_m
        first_of_b = (index(0),) * (len(self.b.buffer.shape) - 2)
        d = (accumulators.buffer, (index(0), accumulators.column))
        a = (self.a.buffer, (stage, *self._a_rows(first_atom, k_atom, 0)))
        b = (self.b.buffer, (stage, index(k_atom), *first_of_b))
        scales = self.gemm.block_scales
        if accumulators.scales is None or scales is None:
            k, turned = multiplied_k(self.gemm), (not self.a.along_k, not self.b.along_k)
            yield TensorMemoryMma(*d, *a, *b, WGMMA_M * s.atoms_m, s.mma_n, k, accumulates, *turned)
            return
        memory, first = accumulators.scales, accumulators.warpgroup * warpgroup_scale_columns(self.gemm)
        own = index(0) if s.ping_pong else self.roles.warpgroup
        of_a, of_b = self.scales
        yield from of_a.copies(memory, first, stage, k_atom, own, 1)
        yield from of_b.copies(memory, first, stage, k_atom, index(0), s.mma_n // SCALE_ROWS)
        columns = [(memory, (index(0), first + of.column)) for of in self.scales]
        yield BlockScaledMma(*d, *a, *b, *columns[0], *columns[1], scales.name, s.mma_n, scales.atom.line, accumulates)

    def finish(self, accumulators: TensorAccumulators, number: Expr, last_fill: Expr) -> None:
        w, s = self.w, self.s
        with w.when(self.roles.issues):
            w.emit(TensorMemoryCommit(self.accumulated, accumulators.warpgroup))
        parity = number // s.tiles_per_iteration % 2
        w.emit(MbarrierWait(self.accumulated, accumulators.warpgroup, parity))

    def await_releases(self, tiles: Expr) -> None:
        """The producer waits until all CTAs of the cluster have released the stages that this one filled last, of so
        many ``tiles``. Their arrivals, which come by themselves, would otherwise reach a CTA that has ended."""
        w, s, fills = self.w, self.s, tiles * self.s.k_iters
        with w.when(self.roles.elected), w.loop("last_stage", s.stages) as n:
            fill = fills + n
            w.emit(MbarrierWait(self.barriers.empty, fill % s.stages, index(1) - fill // s.stages % 2))
