"""split: one loop becomes two."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from ...core.errors import IllegalSchedule
from ...ir.expr import Expr, Var, index
from ...ir.rewrite import fresh_name, rename, replace_buffers, substitute
from ...ir.stmt import Allocate, For, If, Kernel, LoopKind, Stmt, seq, walk_statements
from ..loop_nest.tree import find_loop, names_in, require_new_names, require_serial, with_loop

Tail = Literal["guard", "peel"]


def split(kernel: Kernel, loop: str, factor: int, *, outer: str, inner: str, tail: Tail = "guard") -> Kernel:
    """Splits ``loop`` into ``outer`` (of ceil(extent / factor) iterations) and ``inner`` (of ``factor``).

    ::

        for i in 0..24:              for io in 0..3:
          A[i] = 0         ->          for ii in 0..8:        # split(k, "i", 8, outer="io", inner="ii")
                                         A[io*8 + ii] = 0

    An extent that ``factor`` does not divide leaves a tail. ``tail="guard"`` puts a condition around the body of the
    inner loop; a factor above the extent is allowed then. ``tail="peel"`` writes the tail as a nest of its own behind
    the whole blocks. Every loop and local buffer of that copy gets the suffix ``_tail``, and a number where that is
    taken::

        for i in 0..20:              for io in 0..3:                          for io in 0..2:
          A[i] = 0         ->          for ii in 0..8:                or        for ii in 0..8:
                                         if io*8 + ii < 20:                       A[io*8 + ii] = 0
                                           A[io*8 + ii] = 0                   for ii_tail in 0..4:
                                                                                A[16 + ii_tail] = 0

    Raises IllegalSchedule for a loop that does not exist or is not serial, for a factor below 1 or (with ``peel``)
    above the extent, and for new names that are taken.
    """
    path = find_loop(kernel, loop, primitive="split")
    require_serial(path.loop, primitive="split")
    extent = path.loop.extent
    if tail not in ("guard", "peel"):
        raise IllegalSchedule(f"split: tail is {tail!r}; allowed: 'guard', 'peel'", field="tail")
    if factor < 1 or (tail == "peel" and factor > extent):
        allowed = f"1 to {extent}, the extent of {loop!r}" if tail == "peel" else "1 and more"
        raise IllegalSchedule(f"split: factor is {factor}; allowed: {allowed}", field="factor")
    require_new_names(kernel, {"outer": outer, "inner": inner}, primitive="split", instead_of=(loop,))
    whole, rest = divmod(extent, factor)
    at = Var(outer) * factor + Var(inner)
    body = substitute(path.loop.body, {loop: at})
    if rest == 0 or tail == "peel":
        blocks = _two_loops(outer, whole, inner, factor, body)
        if rest == 0:
            return with_loop(kernel, path.loop, blocks)
        taken = names_in(kernel) | {outer, inner}
        last = fresh_name(f"{inner}_tail", taken)
        remainder = copied(path.loop.body, "_tail", taken | {last}, {loop: index(whole * factor) + Var(last)})
        return with_loop(kernel, path.loop, seq(blocks, For(last, rest, LoopKind.SERIAL, remainder)))
    guarded = _two_loops(outer, whole + 1, inner, factor, If(at < extent, body))
    return with_loop(kernel, path.loop, guarded)


def _two_loops(outer: str, outer_extent: int, inner: str, inner_extent: int, body: Stmt) -> Stmt:
    return For(outer, outer_extent, LoopKind.SERIAL, For(inner, inner_extent, LoopKind.SERIAL, body))


def copied(stmt: Stmt, suffix: str, taken: Iterable[str], values: dict[str, Expr]) -> Stmt:
    """Return a copy of ``stmt`` whose loops and local buffers get ``suffix``, with a number where that is taken, and
    whose variables in ``values`` are replaced."""
    used = set(taken)
    loops: dict[str, str] = {}
    buffers = {}
    for s in walk_statements(stmt):
        if isinstance(s, For):
            loops[s.var] = fresh_name(s.var + suffix, used)
            used.add(loops[s.var])
        elif isinstance(s, Allocate):
            name = fresh_name(s.buffer.name + suffix, used)
            used.add(name)
            buffers[s.buffer.name] = replace(s.buffer, name=name)
    return substitute(rename(replace_buffers(stmt, buffers), loops), values)
