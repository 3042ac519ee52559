"""How the products take k apart: into atoms, the elements of a swizzled row of 128 bytes (64 of 16 bits).

Where A is images seen through a window, an atom is such a row of channels of one tap. The last atom of a tap may have
fewer; TMA brings zeros for the rest. Taps that read from a patch with a halo follow one another. Where operands are
split into planes, the pairs of planes of a row follow one another.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ....ir.expr import Expr, Load, Select, Var, index, logical_and
from ....ir.gpu.tma import Im2col, corner_range, largest_offset
from ....ir.gpu.wgmma import SWIZZLE_LINES, WGMMA_M, WgmmaAtom
from ....ir.rewrite import free_variables, substitute
from ....ir.simplify import prove
from ....ir.verifier.tma import CHUNK_BYTES, MAX_ELEMENT_STRIDE
from ....te.functions import equal
from ....te.workload import Axis
from ...problems.gemm import Gemm
from ...problems.image_window import TAP, ImageWindow
from ...problems.implicit_gemm import filters_exist
from ...tile.delinearize import axis_indices
from ..occupancy import Whole
from ..tma_view import operand_view
from .mma_atom import PLANES, is_packed, pair_count, promoted_k_atoms, splitting, wgmma_atom

MOST_ROW_ATOMS = 4
"""Of products with more atoms, the places that the last one lacks are a small share."""


def k_atom_count(gemm: Gemm) -> int:
    """Return how many atoms there are."""
    if gemm.window is None:
        return _row_atoms(gemm) * pair_count(gemm)
    return gemm.window.tap_count * _row_atoms(gemm)


def row_depth(gemm: Gemm) -> int:
    """Return how many places of k a row has: all, or the channels of one tap and one group."""
    return gemm.k.extent if gemm.window is None else gemm.window.channels // gemm.window.joined_groups


def halo_taps(gemm: Gemm) -> int:
    """Return how many atoms of a stage read the same lines of A."""
    return 1 if gemm.window is None else gemm.window.halo_taps


def stage_lines(gemm: Gemm, tile_m: Whole, k_atoms: Whole) -> Whole:
    """Return how many lines of A a stage has."""
    if gemm.window is None or gemm.window.halo is None:
        return tile_m * k_atoms
    return tile_m // WGMMA_M * gemm.window.patch_lines


def multiplied_k(gemm: Gemm) -> int:
    """Return how many places of an atom are multiplied: not the rest of a row where ``k`` is short or there are few
    channels, which may be those of another group."""
    atom = wgmma_atom(gemm)
    return min(-(-_row_places(gemm) // atom.k) * atom.k, atom.line)


def b_along_k(gemm: Gemm) -> bool:
    """Return whether the rows of B lie along ``k``, in memory or once they are packed."""
    assert gemm.b.load is not None
    return is_packed(gemm, gemm.b) or operand_view(gemm.b.load).indices[-1] == Var("k")


def last_multiplied_k(gemm: Gemm) -> int:
    """Return how many places of the last atom of a row are multiplied, fewer than of the others where ``k`` or the
    channels of a tap end within it. To tell such atoms apart costs more than a few places where all of B arrives
    anyway, along ``k``: the stem of a ResNet in TF32, of 24 places and 32, took an H200 111 us so, not 97."""
    atom, atoms = wgmma_atom(gemm), _row_atoms(gemm)
    if gemm.a_in_registers:
        return multiplied_k(gemm)
    if gemm.window is None and (atoms > MOST_ROW_ATOMS or pair_count(gemm) > 1 or promoted_k_atoms(gemm) > 0):
        return multiplied_k(gemm)
    last = -(-(_row_places(gemm) - (atoms - 1) * atom.line) // atom.k) * atom.k
    return multiplied_k(gemm) if b_along_k(gemm) and 2 * last > atom.line and not is_grouped(gemm) else last


def lines_of_b(gemm: Gemm, ctas: Whole) -> Whole:
    """Return how many lines an atom of B has whose rows lie along ``n``, one for each place of k: those that are
    multiplied, if each of the ``ctas`` that share it loads whole periods of the swizzle of them."""
    groups = joined_groups(gemm)
    lines, needed = wgmma_atom(gemm).line // groups, multiplied_k(gemm) // groups
    return lines + (needed - lines) * (needed % (SWIZZLE_LINES * ctas) == 0)


def ends_row(gemm: Gemm, place: Mapping[str, Expr]) -> Expr:
    """Return whether the atom that begins at ``place`` is the last one of its row."""
    return place["k"] >= (_row_atoms(gemm) - 1) * wgmma_atom(gemm).line


def mean_multiplied_k(gemm: Gemm) -> float:
    """Return how many places of an atom are multiplied in the mean."""
    return multiplied_k(gemm) + (last_multiplied_k(gemm) - multiplied_k(gemm)) / _row_atoms(gemm)


def is_grouped(gemm: Gemm) -> bool:
    """Return whether the first axis of the batch is that of the groups of a convolution."""
    return gemm.window is not None and gemm.a.load is not None and gemm.a.load.buffer.shape[-1] != gemm.window.channels


def joined_groups(gemm: Gemm) -> int:
    """Return how many parts an atom has that are multiplied with columns of their own, the groups of a convolution."""
    return 1 if gemm.window is None else gemm.window.joined_groups


def k_atom_place(gemm: Gemm, k_atom: Expr, *, may_exceed: bool) -> dict[str, Expr]:
    """Return where an atom begins (axis -> index), by its number. ``may_exceed``: whether there may be none of that
    number. Then it begins outside of the tensors, so that it is zero."""
    window = gemm.window
    if window is None:
        line, pairs = wgmma_atom(gemm).line, splitting(gemm).pairs
        if len(pairs) < 2:
            return {"k": k_atom * line}
        a, b = (table_entry(k_atom % len(pairs), [index(pair[side]) for pair in pairs]) for side in range(2))
        return {"k": k_atom // len(pairs) * line, PLANES["m"]: a, PLANES["n"]: b}
    taps, blocks, together = window.tap_count, _row_atoms(gemm), window.halo_taps
    number = k_atom if together == 1 else k_atom // together
    if window.taps_innermost:
        tap, block = number % (taps // together), number // (taps // together)
    else:
        tap, block = number // blocks, number % blocks
    if window.halo is not None:
        inner = prod(window.taps[window.halo + 1 :])
        tap = (tap // inner * together + k_atom % together) * inner + tap % inner
    tap = index(0) if taps == 1 else tap
    channel = index(0) if blocks == 1 else block * wgmma_atom(gemm).line
    if may_exceed:
        assert gemm.a.load is not None
        exists, vector = k_atom < taps * blocks, CHUNK_BYTES // wgmma_atom(gemm).a.bytes
        tap = Select(exists, tap, index(0))
        channel = Select(exists, channel, index(-(-gemm.a.load.buffer.shape[-1] // vector) * vector))
    return {TAP: tap, "k": channel}


def phase_axes(gemm: Gemm) -> list[Axis]:
    """Return the axes of the batch that say which taps a kernel has: those of phases."""
    names = {name for condition in filters_exist(gemm) for name in free_variables(condition)}
    return [axis for axis in gemm.batch if axis.name in names]


def tap_exists(gemm: Gemm, at: Mapping[str, Expr]) -> Expr:
    """Return whether a kernel has the tap at ``at``, in the phase there."""
    return logical_and(*(substitute(condition, at) for condition in filters_exist(gemm)))


def tap_share(gemm: Gemm) -> float:
    """Return of which share of the taps any phase has one: those along a halo are loaded and multiplied together."""
    window = gemm.window
    if window is None or not filters_exist(gemm):
        return 1.0
    phases, found = phase_axes(gemm), set[tuple[int, ...]]()
    for phase in range(prod(axis.extent for axis in phases)):
        for tap, place in enumerate(np.ndindex(window.taps)):
            at = {**axis_indices(index(phase), phases), TAP: index(tap)}
            if prove(tap_exists(gemm, at), {}):
                found.add((phase, *(n for d, n in enumerate(place) if d != window.halo)))
    return len(found) * window.halo_taps / (prod(axis.extent for axis in phases) * window.tap_count)


def table_entry(number: Expr, table: Sequence[Expr]) -> Expr:
    """Return the entry with some number of a table."""
    found = table[-1]
    for n, entry in reversed(list(enumerate(table[:-1]))):
        found = Select(equal(number, n), entry, found)
    return found


def _row_places(gemm: Gemm) -> int:
    """Return how many places of k follow one another: all, or the channels of a tap."""
    return gemm.k.extent if gemm.window is None else gemm.window.channels


def _row_atoms(gemm: Gemm) -> int:
    """Return how many atoms they are."""
    return -(-_row_places(gemm) // wgmma_atom(gemm).line)


def can_load_im2col(load: Load, window: ImageWindow, atom: WgmmaAtom) -> bool:
    """Return whether there is an im2col tensor map for these images, and groups end where a wgmma does."""
    sides = len(window.taps)
    extents, grouped = load.buffer.shape[1:-1], load.buffer.shape[-1] != window.channels
    corners = (*window.lower, *Im2col(window.lower, window.positions, window.strides).upper(extents))
    reach = [(taps - 1) * dilation for taps, dilation in zip(window.taps, window.dilations, strict=True)]
    return (
        all(corner in corner_range(sides) for corner in corners)
        and max(reach) + window.most_shifted <= largest_offset(sides)
        and max(window.strides) <= MAX_ELEMENT_STRIDE
        and (not grouped or window.channels % atom.k == 0)
    )
