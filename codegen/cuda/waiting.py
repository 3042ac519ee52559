"""Where a launch waits for those before it: ahead of the first statement that touches global memory.

What comes earlier (shared memory is prepared, data is asked for) happens while they still run.
"""

from dataclasses import dataclass, replace

from ...ir.buffer import Scope
from ...ir.gpu import Prefetch
from ...ir.rewrite import loads_of
from ...ir.stmt import Allocate, Operation, Seq, Stmt, Store, expressions, seq, walk_statements


@dataclass(frozen=True, slots=True)
class AwaitEarlierLaunch(Operation):
    """Lets the next launch begin where there is room, and waits until all that earlier ones wrote is there."""


def with_wait(body: Stmt) -> Stmt:
    """The body of a launch with an AwaitEarlierLaunch, which all its threads reach."""
    return _placed(body) if _touches(body) else seq(AwaitEarlierLaunch(), body)


def _placed(stmt: Stmt) -> Stmt:
    match stmt:
        case Allocate(body=body):
            return replace(stmt, body=_placed(body))
        case Seq(statements=statements):
            first = next(i for i, s in enumerate(statements) if _touches(s))
            return seq(*statements[:first], _placed(statements[first]), *statements[first + 1 :])
    return seq(AwaitEarlierLaunch(), stmt)


def _touches(stmt: Stmt) -> bool:
    """Whether anything in ``stmt`` reads or writes global memory."""
    for below in walk_statements(stmt):
        match below:
            case Prefetch():
                pass
            case Store(buffer=buffer) if buffer.scope is Scope.GLOBAL:
                return True
            case Operation(buffers=buffers) if any(b.scope is Scope.GLOBAL for b in buffers):
                return True
        if any(load.buffer.scope is Scope.GLOBAL for e in expressions(below) for load in loads_of(e)):
            return True
    return False
