"""cache_read: the part of a tensor that a loop reads is copied to a small contiguous buffer first."""

from dataclasses import replace

from ...core.errors import IllegalSchedule
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import Expr, Load, Var
from ...ir.rewrite import fresh_name
from ...ir.stmt import Allocate, For, Kernel, LoopKind, Stmt, Store, seq
from ..loop_nest.region import inside_dimension, rebased, region
from ..loop_nest.tree import (
    accesses,
    find_loop,
    guarded_by,
    innermost_guarded,
    names_in,
    ranges_of,
    require_local,
    require_no_lanes,
    with_loop,
)


def cache_read(kernel: Kernel, tensor: str, loop: str, *, scope: MemoryScope = MemoryScope.LOCAL) -> Kernel:
    """Copies the box of ``tensor`` that one iteration of ``loop`` reads to a local buffer, and reads that instead.

    ::

        for io in 0..4:                     for io in 0..4:               # cache_read(k, "A", "io")
          for ii in 0..8:            ->       local A_io[8]
            B[io*8 + ii] = A[io*8 + ii]       for A_io_0 in 0..8:
                                                A_io[A_io_0] = A[io*8 + A_io_0]
                                              for ii in 0..8:
                                                B[io*8 + ii] = A_io[ii]

    The buffer is called ``<tensor>_<loop>`` (numbered when taken), its loops after it and the dimension. Positions
    outside the tensor are not copied. Raises IllegalSchedule for a loop that is not there, is vectorised or inside
    such a loop; a tensor not read in it, written in it, or not in global memory (a local buffer may have elements
    that nobody computed); a scope other than local and register.
    """
    place = find_loop(kernel, loop, primitive="cache_read")
    require_local(scope, primitive="cache_read")
    require_no_lanes(place, primitive="cache_read")
    guards, spot = innermost_guarded(place.loop)
    found = [access for access in accesses(spot) if access.buffer.name == tensor]
    if not found or any(access.store is not None for access in found):
        problem = "is written" if found else "is not read"
        raise IllegalSchedule(f"cache_read: tensor is {tensor!r}, which {problem} inside {loop!r}", field="tensor")
    old = found[0].buffer
    if old.scope is not MemoryScope.GLOBAL:
        raise IllegalSchedule(
            f"cache_read: tensor is {tensor!r}, in {old.scope} scope; allowed: global", field="tensor"
        )
    around = ranges_of(place.loops)
    spans = region(found, old.shape, around)
    taken = names_in(kernel)
    new = Buffer(fresh_name(f"{tensor}_{loop}", taken), tuple(span.extent for span in spans), old.dtype, scope)
    taken.add(new.name)
    names = []
    for dimension in range(len(spans)):
        names.append(fresh_name(f"{new.name}_{dimension}", taken))
        taken.add(names[-1])
    at: tuple[Expr, ...] = tuple((span.base.to_expr() + Var(n)) for span, n in zip(spans, names, strict=True))
    copy: Stmt = Store(new, tuple(Var(n) for n in names), Load(old, at))
    for name, span, position, extent in reversed(list(zip(names, spans, at, old.shape, strict=True))):
        body = guarded_by(inside_dimension(span, position, extent), copy)
        copy = For(name, span.extent, LoopKind.SERIAL, body)
    body = Allocate(new, seq(copy, rebased(spot, tensor, new, spans, around)))
    body = guarded_by([guard.condition for guard in guards], body)
    return with_loop(kernel, place.loop, replace(place.loop, body=body))
