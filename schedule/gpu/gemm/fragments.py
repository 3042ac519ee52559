"""A that wgmma takes from registers (RS in CUTLASS): its rows lie along ``m``, and from shared memory wgmma takes its
type K-major alone.

TMA brings lines of 32 places of ``m``, one for each place of ``k``, and rounds them to TF32. Lanes load pairs of
neighbours (``permuted_rows``). Accumulators have their rows in that order, which ``FragmentEpilogue`` stores.

A stage is multiplied in parts of 16 places of k. While one of them is multiplied, the next one is loaded into other
registers:

    for each part:  wait until the wgmma of the part before the last one are done
                    load the part from shared memory
                    issue its wgmma
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, index
from ....ir.gpu.wgmma import WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ...problems.gemm import Gemm, Result
from ...tile.contiguous import contiguous_vector
from ...tile.stage_body import vector_at
from ..permuted_rows import permuted_row
from ..tma_view import operand_view
from .epilogue import Accumulators, Epilogue, TileFragments
from .k_atoms import multiplied_k
from .mainloop import WgmmaMainloop
from .mma_atom import find_atom, is_packed, splitting
from .result_box import stores_pairs_of_rows
from .sizes import FRAGMENT_PART_K, WARPGROUP_WARPS


def with_a_in_registers(gemm: Gemm) -> Gemm:
    """Return the product with A in registers where it would have to be packed for each call otherwise, and the results
    have 32 bits."""
    atom, a = find_atom(gemm), gemm.a.load
    if atom is None or a is None or atom.transposes or atom.fragment is None or splitting(gemm).planes != 1:
        return gemm
    special = (gemm.window, gemm.b_window, gemm.groups, gemm.scales, gemm.block_scales)
    if any(part is not None for part in special) or gemm.others or not gemm.stored:
        return gemm
    if not is_packed(gemm, gemm.a) or gemm.is_constant(operand_view(a).buffer):
        return gemm
    return replace(gemm, a_in_registers=all(r.tensor.dtype.bits == 32 for r in gemm.results))


@dataclass(frozen=True, slots=True)
class _KPart:
    """``places`` places of a k atom from the ``first`` one on."""

    k_atom: int
    first: int
    places: int


class FragmentMainloop(WgmmaMainloop):
    """The loop over k with A in registers."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        k, size = multiplied_k(self.gemm), FRAGMENT_PART_K
        self.parts = [_KPart(n, i, min(size, k - i)) for n in range(self.s.k_atoms) for i in range(0, k, size)]
        self.held = 2 if len(self.parts) % 2 == 0 else 1
        """Of how many parts a thread holds fragments. Parts of all stages take turns."""
        shape = (self.held, self.s.atoms_m, size // 2)
        self.fragments = self.w.allocate("fragments", shape, self.atom.a, MemoryScope.REGISTER)

    def multiply(
        self,
        accumulators: Buffer,
        at: Mapping[str, Expr],
        k_iter: Expr,
        fill: Expr,
        has_rows: Expr | None = None,
        first: Expr | None = None,
    ) -> None:
        """Load and multiply the parts of a k iteration. The last one of the iteration before is done before the last
        registers are overwritten, and its stage is released."""
        w, follows = self.w, k_iter > 0
        self.await_stage(fill)
        for number, part in enumerate(self.parts):
            w.emit(WarpgroupMmaWait((self.held - 1) * self.s.atoms_m))
            if number == self.held - 1:
                with w.when(follows):
                    self.release(fill - 1)
            held = number % self.held
            self._load(part, held, fill)
            columns = self.b.rows_inside(at["n"], self.s.mma_n)
            for atom in range(self.s.atoms_m):
                w.emit(
                    WarpgroupMma(
                        accumulators,
                        (index(atom), index(0)),
                        self.fragments,
                        (index(held), index(atom), index(0)),
                        self.b.buffer,
                        (fill % self.s.b_stages, index(part.k_atom), index(0), index(part.first)),
                        self.s.mma_n,
                        part.places,
                        True if number else follows,
                        valid_columns=columns,
                    )
                )

    def _load(self, part: _KPart, held: int, fill: Expr) -> None:
        """Load a part of the rows of the warpgroup into the registers with the number ``held``."""
        w, s, roles = self.w, self.s, self.roles
        first_atom = index(0) if s.ping_pong else roles.warpgroup * s.atoms_m
        with (
            w.unrolled("fragment_atom", s.atoms_m) as atom,
            w.unrolled("step", part.places // self.atom.k) as step,
            w.unrolled("k_half", 2) as half,
        ):
            row = (first_atom + atom) * WGMMA_M + permuted_row(roles.warp % WARPGROUP_WARPS, roles.lane, index(0))
            k, line = part.first + step * self.atom.k + half * (self.atom.k // 2) + roles.lane % 4, self.atom.line
            source = (fill % s.stages, index(part.k_atom), row // line, k, row % line)
            w.store(
                self.fragments,
                contiguous_vector((index(held), atom, step * 4 + half * 2), 2),
                Load(self.a.buffer, contiguous_vector(source, 2)),
            )


class FragmentEpilogue(Epilogue):
    """The epilogue of accumulators whose rows are in the order of ``permuted_row``. Where these are neighbours in the
    results, a thread stores two of them at once."""

    def _fragment_row(self, half: Expr) -> Expr:
        return permuted_row(self.warp_in_group, self.lane, half)

    def _store_from_registers(
        self, accumulators: Accumulators, atom: int, at: Mapping[str, Expr], first_column: int, columns: int
    ) -> None:
        gemm, w = self.gemm, self.w
        if not gemm.along_m:
            super()._store_from_registers(accumulators, atom, at, first_column, columns)
            return
        width = 2 if stores_pairs_of_rows(gemm) else 1
        fragments = self._fragments(accumulators, atom, first_column, columns)
        with (
            w.unrolled("pair", columns // 8) as pair,
            w.unrolled("column", 2) as column,
            w.unrolled("half", 2 // width) as half,
        ):
            m, n = self._position(at, atom, pair, half)
            here = {**at, "m": m, "n": n + column}
            with w.when(m < gemm.m.extent, here["n"] < gemm.n.extent):
                for result in gemm.results:
                    self._store_rows_of(result, fragments, pair * 4 + half * 2 + column, here, width)

    def _store_rows_of(
        self, result: Result, fragments: TileFragments, first: Expr, at: Mapping[str, Expr], width: int
    ) -> None:
        """Store ``width`` neighbours along ``m``, whose accumulators are two apart from ``first`` on."""
        w = self.w
        with w.scope():
            output = w.allocate("output", (width,), result.tensor.dtype, MemoryScope.REGISTER)
            with w.unrolled("row", width) as row:
                here = {**at, "m": at["m"] + row}
                w.store(output, (row,), self._value(fragments, first + row * 2, result, here, 1))
            indices = [vector_at(i, at, "m", width) for i in result.indices]
            *outer, last = (i.value if isinstance(i, Broadcast) else i for i in indices)
            value = Load(output, contiguous_vector((index(0),), width))
            w.store(result.tensor, (*(Broadcast(i, width) if width > 1 else i for i in outer), last), value)
