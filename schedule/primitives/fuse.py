"""fuse: two loops become one."""

from ...core.errors import IllegalSchedule
from ...ir.expr import Expr, Var, index
from ...ir.rewrite import substitute
from ...ir.stmt import For, If, Kernel, LoopKind, Stmt
from ..loop_nest.tree import find_loop, require_new_names, require_serial, with_loop


def fuse(kernel: Kernel, outer: str, inner: str, *, fused: str) -> Kernel:
    """Turns two loops, ``inner`` directly inside ``outer``, into one over the pairs of their iterations.

    ::

        for i in 0..4:                  for f in 0..24:              # fuse(k, "i", "j", fused="f")
          for j in 0..6:      ->          A[f // 6, f % 6] = 0
            A[i, j] = 0

    Conditions between the two move inside. Raises IllegalSchedule for loops that do not exist or are not serial, when
    anything else is between them, and when ``fused`` is taken.
    """
    first = find_loop(kernel, outer, primitive="fuse", argument="outer").loop
    find_loop(kernel, inner, primitive="fuse", argument="inner")
    conditions: list[Expr] = []
    below: Stmt = first.body
    while isinstance(below, If):
        conditions.append(below.condition)
        below = below.then
    if not isinstance(below, For) or below.var != inner:
        what = f"the loop {below.var!r}" if isinstance(below, For) else f"a {type(below).__name__}"
        raise IllegalSchedule(
            f"fuse: inner is {inner!r}; it must be the only thing directly inside {outer!r}, where there is {what}",
            field="inner",
        )
    require_serial(first, primitive="fuse", argument="outer")
    require_serial(below, primitive="fuse", argument="inner")
    require_new_names(kernel, {"fused": fused}, primitive="fuse", instead_of=(outer, inner))
    values: dict[str, Expr] = {outer: Var(fused) // below.extent, inner: Var(fused) % below.extent}
    if below.extent == 1:
        values = {outer: Var(fused), inner: index(0)}
    elif first.extent == 1:
        values = {outer: index(0), inner: Var(fused)}
    body = below.body
    for condition in reversed(conditions):
        body = If(condition, body)
    return with_loop(kernel, first, For(fused, first.extent * below.extent, LoopKind.SERIAL, substitute(body, values)))
