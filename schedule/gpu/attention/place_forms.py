"""Takes what a score says of its place (m, n) from registers.

A thread has scores of two rows, in columns that are a constant apart from its first one. So a linear form of the place
is computed once for each row, and an element adds a constant, or compares one with it:

    n <= m + 3      column <= bound[half]                 bound = m + 3 - n of the first column
    float(m - n)    distance[half] - float(column)        where all of these are exact
"""

from collections.abc import Callable, Mapping

from ....core.dtypes import float32, int32
from ....ir.bounds import Interval, affine_interval, loop_range
from ....ir.buffer import MemoryScope
from ....ir.expr import Cast, Compare, Expr, Load, Unary, UnaryOp, Var
from ....ir.linear_form import LinearForm, affine_form
from ....ir.rewrite import free_variables, map_expr, substitute
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter

HALF, COLUMN = Var("half#"), Var("column#")
"""Which of its two rows an element is in, and how far behind the thread's first column it is. No variable of a kernel
has these names."""
FirstPlace = Callable[[Mapping[str, Expr], Expr], dict[str, Expr]]
"""(place of a block, half of the rows) -> the place of the thread's first score in it: axis -> index."""
_EXACT = Interval(-(1 << 24), 1 << 24)
"""Whole numbers of which float32 has all."""
_WORD = Interval(-(1 << 31), (1 << 31) - 1)


class PlaceForms:
    """The forms of the block at ``at``. Expressions are on the axes of ``p`` when they come in, and on ``HALF`` and
    ``COLUMN`` too when they leave. ``tile``: how many rows and columns a tile has, which may reach behind the last
    ones."""

    def __init__(
        self, w: FreshNameWriter, p: Attention, tile: tuple[int, int], first: FirstPlace, at: Mapping[str, Expr]
    ) -> None:
        self.w, self.first, self.at = w, first, at
        self.columns = loop_range(tile[1])
        self.ranges = {axis.name: loop_range(axis.extent) for axis in p.batch}
        self.ranges |= {axis.name: loop_range(axis.extent + n) for axis, n in zip((p.m, p.n), tile, strict=True)}
        ends = ((p.m_end, p.m), (p.n_end, p.n))
        self.ranges |= {name: Interval(0, axis.extent) for end, axis in ends for name in free_variables(end)}
        self.held: dict[LinearForm, Load] = {}

    def taken(self, body: Expr) -> Expr:
        """Return ``body`` with its linear forms of ``n`` taken from registers, allocated in the open scope."""
        return map_expr(body, self._taken)

    def _taken(self, e: Expr) -> Expr:
        match e:
            case Compare(op=op, a=a, b=b) if a.dtype.is_integer:
                form = self._form(a - b, _WORD)
                if form is not None:
                    return Compare(op, Cast(self._behind(form), int32), self._register(form.scaled(-1)))
            case Cast(value=Unary(op=UnaryOp.ABS, value=value), type=dtype) if dtype == float32:
                distance = self._taken(Cast(value, dtype))
                return e if isinstance(distance, Cast) else Unary(UnaryOp.ABS, distance)
            case Cast(value=value, type=dtype) if dtype == float32 and value.dtype.is_integer:
                form = self._form(value, _EXACT)
                if form is not None:
                    return Cast(self._register(form), float32) + Cast(self._behind(form), float32)
        return e

    def _form(self, e: Expr, limits: Interval) -> LinearForm | None:
        """Return ``e`` as a linear form of ``n`` and other axes whose values, and those that it is computed from, are
        within the limits; None where it is anything else."""
        form = affine_form(e)
        if form is None or not form.coefficient("n") or not self.ranges.keys() >= set(form.variables):
            return None
        parts = (
            affine_interval(form, self.ranges),
            affine_interval(self._behind_form(form), {COLUMN.name: self.columns}),
        )
        return form if all(part.within(limits) for part in parts) else None

    def _behind_form(self, form: LinearForm) -> LinearForm:
        return LinearForm({COLUMN: form.coefficient("n")})

    def _behind(self, form: LinearForm) -> Expr:
        """How much more the form is at an element than at the thread's first column."""
        return self._behind_form(form).to_expr()

    def _register(self, form: LinearForm) -> Load:
        """Return the register with the form at the thread's first column."""
        if form not in self.held:
            register = self.w.allocate("place_form", (2,), int32, MemoryScope.REGISTER)
            with self.w.unrolled("place_half", 2) as half:
                self.w.store(register, (half,), Cast(substitute(form.to_expr(), self.first(self.at, half)), int32))
            self.held[form] = Load(register, (HALF,))
        return self.held[form]
