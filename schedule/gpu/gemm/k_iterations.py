"""Which block of k each iteration of the main loop of a product takes, and whether it has anything to multiply.

Kernels of a phase of a transposed convolution may lack taps that other phases have. An iteration that has none of its
taps loads and multiplies nothing.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

from ....ir.expr import Expr, Load, Logic, LogicOp, index
from ....ir.rewrite import free_variables
from ....ir.simplify import prove
from ....te.functions import equal
from ...problems.gemm import Gemm
from ...problems.implicit_gemm import filters_exist
from ...tile.delinearize import axis_indices
from .k_atoms import k_atom_count, k_atom_place, phase_axes, table_entry, tap_exists
from .sizes import GemmSizes

K_ROTATIONS, LEAST_ROTATED = 4, 16
"""The products of a batch begin at so many different places of ``k``, if they have at least so many k iterations."""


class KIterations:
    """The iterations of one of the ``split_k`` CTAs that share ``k``, the one with number ``k_rank``. ``loads``: those
    of all operands."""

    def __init__(self, gemm: Gemm, sizes: GemmSizes[int], k_rank: Expr, loads: Sequence[Load]) -> None:
        self.gemm, self.s, self.k_rank, self.loads = gemm, sizes, k_rank, loads

    def block(self, at: Mapping[str, Expr], k_iter: Expr) -> Expr:
        """Return which block of k this CTA takes in a k iteration. CTAs that share a tile read neighbours along k at
        about the same time: they lie in the same pages of memory."""
        block = self._rotated(at, k_iter)
        return block if self.s.split_k == 1 else block * self.s.split_k + self.k_rank

    def k_place(self, at: Mapping[str, Expr], k_iter: Expr) -> Expr:
        """Return where the first atom of a k iteration begins along ``k``."""
        return self.place(self.block(at, k_iter), 0)["k"]

    def place(self, block: Expr, k_atom: int) -> dict[str, Expr]:
        """Return where an atom of a block of k begins (axis -> index)."""
        s = self.s
        may_exceed = s.k_iters * s.split_k * s.k_atoms > k_atom_count(self.gemm)
        return k_atom_place(self.gemm, block * s.k_atoms + k_atom, may_exceed=may_exceed)

    def _rotated(self, at: Mapping[str, Expr], k_iter: Expr) -> Expr:
        """Return which block of ``k`` a k iteration takes: neighbours in a batch begin at other quarters of ``k``.

        Rows of operands often lie a power of two apart. If a whole batch were read in step, few channels of memory at a
        time would have to serve it: 32 products 128x128x4096 take an H200 19.6 us so, not 18.7.
        """
        names = {a.name for a in self.gemm.batch} if self.gemm.window is None else set()
        batched = all(names <= {v for i in load.indices for v in free_variables(i)} for load in self.loads)
        if not names or not batched or self.s.k_iters < LEAST_ROTATED:
            return k_iter
        member: Expr = index(0)
        for axis in self.gemm.batch:
            member = member * axis.extent + at[axis.name]
        return (k_iter + member % K_ROTATIONS * (self.s.k_iters // K_ROTATIONS)) % self.s.k_iters

    def has_taps(self, at: Mapping[str, Expr], k_iter: Expr) -> Expr | None:
        """Return whether a k iteration of the tile at ``at`` has a tap that its phase has; None where all have. The
        first one of a tile that has none counts, too, since it overwrites the accumulators."""
        if self._first_taps is None:
            return None
        found: Expr = equal(k_iter, self.first(at))
        for k_atom in range(self.s.k_atoms):
            here = {**at, **self.place(self.block(at, k_iter), k_atom)}
            found = Logic(LogicOp.OR, found, tap_exists(self.gemm, here))
        return found

    def first(self, at: Mapping[str, Expr]) -> Expr:
        """Return the first k iteration of the tile at ``at`` that has a tap."""
        assert self._first_taps is not None
        phase: Expr = index(0)
        for axis in phase_axes(self.gemm):
            phase = phase * axis.extent + at[axis.name]
        return table_entry(phase if self.s.split_k == 1 else phase * self.s.split_k + self.k_rank, self._first_taps)

    @cached_property
    def _first_taps(self) -> list[int] | None:
        """The first k iteration that has a tap, for each phase and each CTA that shares a tile; None where all
        iterations have one."""
        s, gemm = self.s, self.gemm
        if gemm.window is None or not filters_exist(gemm) or s.tensor_columns:
            return None
        firsts, whole = list[int](), True
        for phase in range(prod(a.extent for a in phase_axes(self.gemm))):
            at = dict(axis_indices(index(phase), phase_axes(self.gemm)))
            for rank in range(s.split_k):
                found = [
                    any(
                        prove(tap_exists(self.gemm, {**at, **self.place(index(k_iter * s.split_k + rank), n)}), {})
                        for n in range(s.k_atoms)
                    )
                    for k_iter in range(s.k_iters)
                ]
                firsts.append(found.index(True) if True in found else 0)
                whole &= all(found)
        return None if whole else firsts
