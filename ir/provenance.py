"""Says which statement each statement of a rewritten kernel was made from.

    with tracing() as origins:
        after = some_pass(before)
    origins.of(s, before)       # the statement of ``before`` that the statement ``s`` of ``after`` was made from

Functions that rewrite statements have the decorator ``rewrites``. What one of them makes of a statement comes from this
statement, but for what it made of a statement inside it:

    for i in 4 (unrolled):            C[0] = A[0]      from  C[i] = A[i]
        if i < 3:               ->    C[1] = A[1]      from  C[i] = A[i]
            C[i] = A[i]               C[2] = A[2]      from  C[i] = A[i]

The map stands beside the IR: statements have no field for it, and are built, compared and printed
as without it.
Outside of ``tracing`` nothing is noted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec

from .stmt import Kernel, Stmt, substatements, walk_statements

_P = ParamSpec("_P")


class Origins:
    """The statements that were made while ``tracing``, each with the one that it was made from."""

    def __init__(self) -> None:
        self._made: dict[
            int, tuple[Stmt, Stmt | None]
        ] = {}  # by id; the statement is kept, so that its id stays its own
        self._inside: list[Stmt] = []

    def of(self, stmt: Stmt, kernel: Kernel) -> Stmt | None:
        """Return the statement of ``kernel`` that ``stmt`` was made from; itself where it is in it; None where it was
        not made from any."""
        among = {id(s) for s in walk_statements(kernel.body)}
        return self.among(stmt, among)

    def among(self, stmt: Stmt, ids: set[int]) -> Stmt | None:
        """Return what ``of`` does, for the statements that have ``ids``."""
        here: Stmt | None = stmt
        while here is not None and id(here) not in ids:
            here = self._made.get(id(here), (here, None))[1]
        return here

    def enter(self, stmt: Stmt) -> None:
        """Begin to rewrite ``stmt``. One that was made on the way comes from the statement that is being rewritten."""
        self._note(stmt, self._inside[-1] if self._inside else None)
        self._inside.append(stmt)

    def leave(self, result: Stmt) -> None:
        """End what ``enter`` began: ``result`` was made."""
        self._note(result, self._inside.pop())

    def abandon(self) -> None:
        """End what ``enter`` began: nothing was made."""
        self._inside.pop()

    def _note(self, new: Stmt, old: Stmt | None) -> None:
        waiting = [new]
        while waiting:  # what lies below a known statement is known
            here = waiting.pop()
            if id(here) not in self._made:
                self._made[id(here)] = here, old
                waiting.extend(substatements(here))


_ACTIVE: ContextVar[Origins | None] = ContextVar("origins", default=None)


@contextmanager
def tracing() -> Iterator[Origins]:
    """Note what every statement is made from, for the block and in this thread."""
    origins = Origins()
    token = _ACTIVE.set(origins)
    try:
        yield origins
    finally:
        _ACTIVE.reset(token)


def rewrites(f: Callable[_P, Stmt]) -> Callable[_P, Stmt]:
    """Note, while ``tracing``, what ``f`` makes of its first argument that is a statement."""

    @wraps(f)
    def traced(*args: _P.args, **kwargs: _P.kwargs) -> Stmt:
        origins = _ACTIVE.get()
        if origins is None:
            return f(*args, **kwargs)
        origins.enter(next(a for a in args if isinstance(a, Stmt)))
        try:
            result = f(*args, **kwargs)
        except BaseException:
            origins.abandon()
            raise
        origins.leave(result)
        return result

    return traced
