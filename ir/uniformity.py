"""Who decides alike: whether all threads of a warp, block or cluster find the same value for an expression.

Barriers and operations of whole warps and warpgroups may only stand under conditions that all who must meet decide
alike. Thread ``t`` of a launch is taken apart into its warpgroup, warp and lane here, so that conditions like
``t < 64`` or ``t // 32 == 0`` are known to be the same in all lanes of a warp.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .bounds import Interval, Ranges, loop_range
from .buffer import Scope
from .expr import (
    WARP_LANES,
    Binary,
    BinaryOp,
    ClusterLoad,
    Compare,
    CompareOp,
    Expr,
    Load,
    Select,
    Shuffle,
    ShuffleMode,
    Var,
    index,
    walk,
)
from .gpu import (
    MFMA_ATOMS,
    WARPGROUP_THREADS,
    Barrier,
    Level,
    LoadMatrix,
    Mma,
    SetMaxRegisters,
    StoreMatrix,
    WarpgroupMma,
    WarpgroupMmaWait,
)
from .index_analysis import IndexAnalysis
from .rewrite import substitute
from .simplifier import Simplifier
from .stmt import Bound, HardwareAxis, Launch, Stmt, expressions

_WIDTH = {Level.WARP: 0, Level.WARPGROUP: 1, Level.BLOCK: 2, Level.CLUSTER: 3}
_GROUP_WARPS = WARPGROUP_THREADS // WARP_LANES
_SPREADS = {  # the smallest group within which an axis takes different values
    HardwareAxis.THREAD: Level.WARP,
    HardwareAxis.LANE: Level.WARP,
    HardwareAxis.CLUSTER: Level.CLUSTER,
}


def meeting(stmt: Stmt) -> Iterator[tuple[Level, str]]:
    """What of ``stmt`` itself must be reached by whole groups: (the group, its name). Shuffles are found by
    ``shuffles``."""
    match stmt:
        case Barrier(level=level):
            yield level, f"a barrier of the {level.value}"
        case Mma(atom=atom) if atom in MFMA_ATOMS:
            yield Level.BLOCK, "a matrix operation of a wave"
        case Mma() | LoadMatrix() | StoreMatrix():
            yield Level.WARP, "a matrix operation"
        case WarpgroupMma() | WarpgroupMmaWait():
            yield Level.WARPGROUP, "a product of a warpgroup"
        case SetMaxRegisters():
            yield Level.WARPGROUP, "a change of registers"


def shuffles(stmt: Stmt) -> Iterator[tuple[Shuffle, tuple[Expr, ...]]]:
    """Every shuffle in the expressions of ``stmt`` itself, with the conditions of the selects it is a branch of."""
    for expr in expressions(stmt):
        if any(isinstance(e, Shuffle) for e in walk(expr)):
            yield from _shuffles(expr, ())


def _shuffles(expr: Expr, under: tuple[Expr, ...]) -> Iterator[tuple[Shuffle, tuple[Expr, ...]]]:
    if isinstance(expr, Shuffle):
        yield expr, under
    if isinstance(expr, Select):
        yield from _shuffles(expr.condition, under)
        for branch in (expr.then, expr.otherwise):
            yield from _shuffles(branch, (*under, expr.condition))
        return
    for child in expr.children:
        yield from _shuffles(child, under)


@dataclass(frozen=True)
class Divergence:
    """What is known of one launch. ``ranges``: of the loops inside."""

    launch: Launch
    ranges: Ranges

    def varies(self, expr: Expr, level: Level) -> bool:
        """Whether threads of one group at ``level`` may find different values; sound, so True where unknown."""
        values: dict[str, Expr] = {}
        ranges: dict[str, Interval] = {**self.ranges}
        spread: dict[str, Level] = {}
        for bound in self.launch.bounds:
            ranges[bound.var] = loop_range(bound.extent)
            parts = _parts(bound)
            if parts:
                values[bound.var] = sum((Var(n) * weight for n, weight, _, _ in parts), start=index(0))
            for name, _, extent, level_of in parts:
                ranges[name], spread[name] = loop_range(extent), level_of
            if not parts and bound.axis in _SPREADS:
                spread[bound.var] = _SPREADS[bound.axis]
        together = {Level.WARP: (WARP_LANES,), Level.WARPGROUP: (WARPGROUP_THREADS, _GROUP_WARPS)}.get(level)
        judge = _Judge(Simplifier(IndexAnalysis(ranges)), spread, level, together or (self.launch.threads,))
        return judge.varies(substitute(expr, values))


def _parts(bound: Bound) -> list[tuple[str, int, int, Level]]:
    """A thread's or warp's number as a sum: (name of the part, what it is multiplied with, extent, the smallest group
    within which it differs); nothing where it is not taken apart."""
    var, extent = bound.var, bound.extent
    match bound.axis:
        case HardwareAxis.THREAD if extent % WARP_LANES == 0:
            groups = (f"{var}.group", WARPGROUP_THREADS, -(-extent // WARPGROUP_THREADS), Level.BLOCK)
            warps = (f"{var}.warp", WARP_LANES, min(extent // WARP_LANES, _GROUP_WARPS), Level.WARPGROUP)
            return [groups, warps, (f"{var}.lane", 1, WARP_LANES, Level.WARP)]
        case HardwareAxis.WARP:
            groups = (f"{var}.group", _GROUP_WARPS, -(-extent // _GROUP_WARPS), Level.BLOCK)
            return [groups, (f"{var}.warp", 1, min(extent, _GROUP_WARPS), Level.WARPGROUP)]
    return []


@dataclass(frozen=True)
class _Judge:
    """``spread``: variables, with the smallest group within which they differ. ``together``: numbers of threads or
    warps, any of which a comparison of their numbers may tell apart in groups only."""

    simplifier: Simplifier
    spread: Mapping[str, Level]
    level: Level
    together: tuple[int, ...]

    def reaches(self, level: Level) -> bool:
        """Whether what differs within groups of ``level`` differs within those asked about."""
        return _WIDTH[level] <= _WIDTH[self.level]

    def varies(self, expr: Expr) -> bool:
        simple = self.simplifier.simplify(expr)
        if not self.node(simple):
            return False
        if isinstance(simple, Compare) and _counts(simple):
            return all(
                any(self.node(self.simplifier.simplify(form)) for form in _thresholds(simple, together))
                for together in self.together
            )
        if simple.dtype.is_bool and not isinstance(simple, (Load, ClusterLoad, Shuffle)):
            return any(map(self.varies, simple.children))
        return True

    def node(self, expr: Expr) -> bool:
        """Whether ``expr``, as it stands, reads something that differs."""
        match expr:
            case Var(name=name):
                return name in self.spread and self.reaches(self.spread[name])
            case Load(buffer=buffer) if buffer.scope in (Scope.LOCAL, Scope.REGISTER):
                return True
            case Load(buffer=buffer) if buffer.scope is Scope.SHARED and self.reaches(Level.CLUSTER):
                return True
            case Shuffle(mode=ShuffleMode.INDEX, lane=lane, width=width) if width == WARP_LANES:
                if self.level is Level.WARP:
                    return self.node(lane)
        return any(map(self.node, expr.children))


def _counts(compare: Compare) -> bool:
    """Whether scalar indices are compared."""
    return compare.a.dtype.name == "int64" and compare.lanes == 1


def _thresholds(compare: Compare, together: int) -> tuple[Expr, ...]:
    """Index expressions that decide a comparison: it is the same in all threads if these are. ``f >= 0`` holds exactly
    if ``f // 32 >= 0`` does, in which the lanes often cancel out."""
    a, b = compare.a, compare.b
    forms: tuple[Expr, ...]
    match compare.op:
        case CompareOp.LT:
            forms = (b - a - 1,)
        case CompareOp.LE:
            forms = (b - a,)
        case CompareOp.GT:
            forms = (a - b - 1,)
        case CompareOp.GE:
            forms = (a - b,)
        case _:
            forms = (a - b, b - a)
    return tuple(Binary(BinaryOp.FLOORDIV, f, index(together)) for f in forms)
