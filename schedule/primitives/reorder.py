"""reorder: the loops of a perfect nest change their order."""

from collections.abc import Sequence

from ...core.errors import IllegalSchedule
from ...ir.expr import Expr
from ...ir.stmt import For, If, Kernel, Stmt
from ..loop_nest.dependence import carried_buffer
from ..loop_nest.tree import find_loop, guarded_nest, with_loop


def reorder(kernel: Kernel, loops: Sequence[str]) -> Kernel:
    """Puts ``loops`` in the given order, outermost first. Loops that are not named stay where they are.

    ::

        for i:                        for j:                   # reorder(k, ["j", "i"])
          for k:                        for k:                 # k, not named, stays
            for j:           ->           for i:
              A[i, j] = …                   A[i, j] = …

    From the outermost to the innermost of them there may be nothing but loops and conditions. A condition ends up
    directly inside the innermost loop that it uses. Raises IllegalSchedule for a loop that does not exist or is named
    twice, when other statements are between the loops, and when iterations depend on each other in another way than by
    accumulating into the same element.
    """
    if len(set(loops)) != len(loops) or not loops:
        raise IllegalSchedule(f"reorder: loops is {list(loops)}; allowed: one or more, each once", field="loops")
    paths = [find_loop(kernel, name, primitive="reorder", argument="loops") for name in loops]
    outermost = min(paths, key=lambda path: len(path.loops)).loop
    chain, conditions, body = _chain(outermost, loops)
    buffer = carried_buffer(body)
    if buffer is not None:
        raise IllegalSchedule(
            f"reorder: loops is {list(loops)}, and their iterations hand values on through {buffer!r}; only "
            "loops whose iterations are independent, or accumulate into the same elements, can be reordered",
            field="loops",
        )
    order = iter([next(loop for loop in chain if loop.var == name) for name in loops])
    new_chain = [next(order) if loop.var in loops else loop for loop in chain]
    return with_loop(kernel, outermost, guarded_nest(new_chain, conditions, body))


def _chain(outermost: For, loops: Sequence[str]) -> tuple[list[For], list[Expr], Stmt]:
    """Return the loops from ``outermost`` to the innermost named one, the conditions among them, and what is inside."""
    chain: list[For] = []
    conditions: list[Expr] = []
    missing = set(loops)
    below: Stmt = outermost
    while missing:
        if isinstance(below, For):
            chain.append(below)
            missing.discard(below.var)
            below = below.body
        elif isinstance(below, If):
            conditions.append(below.condition)
            below = below.then
        else:
            raise IllegalSchedule(
                f"reorder: loops is {list(loops)}; between {outermost.var!r} and {sorted(missing)} there may be "
                f"only loops and conditions, and inside {chain[-1].var!r} there is a {type(below).__name__}",
                field="loops",
            )
    return chain, conditions, below
