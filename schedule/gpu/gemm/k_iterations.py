"""Which block of k each iteration of the main loop of a product takes, and how many iterations a tile has.

Kernels of a phase of a transposed convolution may lack taps that other phases have. Tiles of such a phase have fewer
iterations: none for the blocks of k whose taps the phase lacks. With 2x2 taps and two blocks of channels each:

    taps of the phase     all      (0, 0), (1, 0)     (1, 1)
    blocks of k           0 to 7   0 1 4 5            6 7
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

from ....ir.expr import Expr, Load, Select, index
from ....ir.rewrite import free_variables, substitute
from ....ir.simplify import prove
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
        rotated = self._rotated(at, k_iter)
        number = rotated if self.s.split_k == 1 else rotated * self.s.split_k + self.k_rank
        if self._phases is None:
            return number
        blocks = [_nth_found(found, number) for found in self._phases]
        return table_entry(self._phase(at), blocks)

    def k_place(self, at: Mapping[str, Expr], k_iter: Expr) -> Expr:
        """Return where the first atom of a k iteration begins along ``k``."""
        return self.place(self.block(at, k_iter), 0)["k"]

    def place(self, block: Expr, k_atom: int) -> dict[str, Expr]:
        """Return where an atom of a block of k begins (axis -> index)."""
        s = self.s
        may_exceed = s.k_iters * s.split_k * s.k_atoms > k_atom_count(self.gemm)
        if self._phases is not None:
            may_exceed |= any(count * s.split_k > sum(found) for count, found in self._counts(self._phases))
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

    @property
    def differ(self) -> bool:
        """Whether tiles of some phases have fewer iterations than others."""
        return self._phases is not None

    def count(self, at: Mapping[str, Expr]) -> Expr | None:
        """Return how many k iterations the tile at ``at`` has, at least one; None where all tiles have ``k_iters``."""
        if self._phases is None:
            return None
        return table_entry(self._phase(at), [index(count) for count, _ in self._counts(self._phases)])

    def _phase(self, at: Mapping[str, Expr]) -> Expr:
        """Return the number of the phase of the tile at ``at``."""
        phase: Expr = index(0)
        for axis in phase_axes(self.gemm):
            phase = phase * axis.extent + at[axis.name]
        return phase

    def _counts(self, phases: list[list[bool]]) -> Iterator[tuple[int, list[bool]]]:
        """Yield how many iterations the tiles of each phase have, and which blocks of k it has."""
        return ((max(-(-sum(found) // self.s.split_k), 1), found) for found in phases)

    @cached_property
    def _phases(self) -> list[list[bool]] | None:
        """Which blocks of k each phase has taps of; None where each has all, or all are multiplied: where stream-K
        shares out ``k``, and in tensor memory."""
        s, gemm = self.s, self.gemm
        if gemm.window is None or not filters_exist(gemm) or s.tensor_columns or s.unit_rounds:
            return None
        axes = phase_axes(gemm)
        taps = [tap_exists(gemm, axis_indices(index(phase), axes)) for phase in range(prod(a.extent for a in axes))]
        atoms = k_atom_count(gemm)
        places = [k_atom_place(gemm, index(n), may_exceed=False) for n in range(atoms)]
        exist = [[prove(substitute(tap, place), {}) is not False for place in places] for tap in taps]
        phases = [[any(found[n : n + s.k_atoms]) for n in range(0, atoms, s.k_atoms)] for found in exist]
        return None if all(all(found) for found in phases) else phases


def _nth_found(found: list[bool], n: Expr) -> Expr:
    """Return the place of the ``n``-th True of ``found``. Behind the last one, return places that have none, or that
    lie outside of it."""
    period = next(p for p in range(1, len(found) + 1) if len(found) % p == 0 and found == found[:p] * (len(found) // p))
    places = [place for place in range(period) if found[place]]
    if len(places) in (0, period):
        return n
    within = n if period == len(found) else n % len(places)
    # from each of these numbers on, places are so much further than their numbers
    steps = [(k, place - k) for k, place in enumerate(places) if k == 0 or places[k - 1] + 1 < place]
    further: Expr = index(steps[0][1])
    for number, distance in steps[1:]:
        further = Select(within < number, further, index(distance))
    return within + further if period == len(found) else n // len(places) * period + within + further
