"""Linear forms over anything: a constant plus whole multiples of atoms, for scalars and vectors of indices.

An atom is a variable (kept by its name), the lane number (``LANE``: 0, 1, … in a vector, so that ``Ramp(b, s, n)``
is ``b + s * LANE``), or any other index expression the simplifier cannot take apart. All arithmetic is modulo 2^64,
like that of the index type; a form says what the *value* is only where its bounds fit (see ``reasoning``).
"""

from dataclasses import dataclass

from .affine import sum_of
from .expr import Binary, BinaryOp, Broadcast, Expr, Ramp, Var, index

LANE = ""
"""The atom that counts the lanes of a vector (no variable is called so)."""

Atom = str | Expr
_HALF, _WHOLE = 1 << 63, 1 << 64


@dataclass(slots=True)
class Linear:
    """``constant + sum(coefficient * atom)`` in ``lanes`` lanes. Never changed once built; no coefficient is 0."""

    terms: dict[Atom, int]
    constant: int
    lanes: int = 1

    @property
    def varies(self) -> bool:
        """Whether the lanes may differ."""
        return self.lanes > 1 and any(k == LANE if isinstance(k, str) else k.lanes > 1 for k in self.terms)


def wrapped(value: int) -> int:
    """``value`` modulo 2^64, from -2^63 to 2^63 - 1."""
    return value if -_HALF <= value < _HALF else (value + _HALF) % _WHOLE - _HALF


def constant(value: int, lanes: int = 1) -> Linear:
    return Linear({}, wrapped(value), lanes)


def plus(a: Linear, b: Linear, factor: int = 1) -> Linear:
    """``a + factor * b``."""
    lanes = a.lanes if a.lanes > b.lanes else b.lanes
    total = a.constant + factor * b.constant
    if not b.terms:
        return Linear(a.terms, wrapped(total), lanes)
    terms = dict(a.terms)
    for atom, c in b.terms.items():
        new = terms.get(atom, 0) + factor * c
        if -_HALF <= new < _HALF and new != 0:
            terms[atom] = new
        elif wrapped(new):
            terms[atom] = wrapped(new)
        else:
            terms.pop(atom, None)
    return Linear(terms, wrapped(total), lanes)


def scaled(a: Linear, factor: int) -> Linear:
    """``factor * a``."""
    if factor == 1:
        return a
    products = ((atom, wrapped(c * factor)) for atom, c in a.terms.items())
    return Linear({atom: c for atom, c in products if c}, wrapped(a.constant * factor), a.lanes)


def uniform(a: Linear) -> Linear:
    """The one-lane form of a vector whose lanes are all the same (see ``varies``)."""
    return a if a.lanes == 1 else Linear(a.terms, a.constant)


def widened(a: Linear, lanes: int) -> Linear:
    return a if a.lanes == lanes else Linear(a.terms, a.constant, lanes)


def written(a: Linear) -> Expr:
    """The expression of a form: scalar parts first, as the base of one Ramp or Broadcast in a vector."""
    if a.lanes == 1:
        return sum_of([(Var(k) if isinstance(k, str) else k, c) for k, c in a.terms.items()], a.constant)
    scalars: list[tuple[Expr, int]] = []
    vectors: list[tuple[Expr, int]] = []
    for atom, c in a.terms.items():
        if isinstance(atom, str):
            if atom != LANE:
                scalars.append((Var(atom), c))
        else:
            (vectors if atom.lanes > 1 else scalars).append((atom, c))
    stride = a.terms.get(LANE, 0)
    total: Expr | None = None
    if stride or scalars or a.constant or not vectors:
        base = sum_of(scalars, a.constant)
        total = Ramp(base, stride, a.lanes) if stride else Broadcast(base, a.lanes)
    for atom_expr, c in vectors:
        term = atom_expr if c == 1 else Binary(BinaryOp.MUL, atom_expr, Broadcast(index(c), a.lanes))
        total = term if total is None else Binary(BinaryOp.ADD, total, term)
    assert total is not None
    return total
