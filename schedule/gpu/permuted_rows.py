"""Fragments of the left operand of wgmma, loaded from lines of 32 words along ``m``, one line for each place of ``k``.

Lanes load pairs of neighbours, and wgmma takes the two for rows of both halves of a fragment: 16 w + g and 16 w + g + 8
of the 64 rows of an atom, with w the warp of the warpgroup and g = lane // 4. So its rows, and those of accumulators,
are places of ``m`` in another order:

    32 (w // 2) + 16 (g // 2 % 2) + 8 (w % 2) + 4 (g // 4) + 2 (g % 2)    and the next one

Half a warp reads four lines, and the swizzle of 128 bytes has the chunk c of the line k at c ^ (k % 8). In this order
the half warp reads from all banks where the lines follow one another. Lanes that load every second line read from all
banks where 16 (g // 4) and 4 (g // 2 % 2) change places.
"""

from ...ir.expr import Expr


def permuted_row(warp: Expr, lane: Expr, half: Expr, lines: int = 1) -> Expr:
    """Return which of the 64 places of an atom a ``lane`` of a ``warp`` of the warpgroup has in one half of its
    fragments. ``lines``: how many lines follow one another for the same lane, 1 or 2."""
    group = lane // 4
    digits = (group // 2 % 2, group // 4) if lines == 1 else (group // 4, group // 2 % 2)
    return warp // 2 * 32 + digits[0] * 16 + warp % 2 * 8 + digits[1] * 4 + group % 2 * 2 + half
