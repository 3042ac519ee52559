"""Uniformity analysis finds out whether all threads of a warp, warpgroup, block, cluster or grid compute the same value
of an expression.

Barriers, and operations of whole warps and warpgroups, may only stand under conditions that are uniform across all the
threads that they synchronise. The number of a thread is written here as a sum over its warpgroup, its warp and its
lane, so that conditions like ``t < 64`` or ``t // 32 == 0`` are known to be the same in all lanes of a warp.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from .bounds import Interval, Ranges, loop_range
from .buffer import Buffer, MemoryScope
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
)
from .gpu.barrier import WARPGROUP_THREADS, Barrier, SyncScope
from .gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from .gpu.ldmatrix import LoadMatrix, StoreMatrix
from .gpu.mma import MFMA_ATOMS, Mma
from .gpu.ordered_sequence import OrderedSequenceArrive, OrderedSequenceStart, OrderedSequenceWait
from .gpu.setmaxnreg import SetMaxRegisters
from .gpu.tcgen05 import TensorMemoryAllocate, TensorMemoryDeallocate, TensorMemoryLoad
from .gpu.wgmma import WarpgroupMma, WarpgroupMmaWait
from .index_analysis import IndexAnalysis
from .rewrite import reads_of, substitute
from .simplifier import Simplifier
from .stmt import (
    GRID_AXES,
    Allocate,
    AxisBinding,
    For,
    HardwareAxis,
    If,
    Launch,
    Operation,
    Seq,
    Stmt,
    Store,
    expressions,
)

_WIDTH = {SyncScope.WARP: 0, SyncScope.WARPGROUP: 1, SyncScope.BLOCK: 2, SyncScope.CLUSTER: 3, SyncScope.GRID: 4}
_WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_LANES
_DIVERGES_WITHIN = {  # the smallest group of threads within which an axis has different values
    HardwareAxis.THREAD: SyncScope.WARP,
    HardwareAxis.LANE: SyncScope.WARP,
    HardwareAxis.CLUSTER: SyncScope.CLUSTER,
    **dict.fromkeys(GRID_AXES, SyncScope.GRID),
}


def convergent_scopes(stmt: Stmt) -> Iterator[tuple[SyncScope, str]]:
    """Yield the groups of threads that must reach ``stmt`` together, with what it is called in messages. The shuffles
    in its expressions are found by ``guarded_shuffles``."""
    match stmt:
        case Barrier(scope=scope):
            yield scope, f"a barrier of the {scope.value}"
        case GridBarrierArrive() | GridBarrierWait():
            yield SyncScope.GRID, "a barrier of the grid"
        case Mma(atom=atom) if atom in MFMA_ATOMS:
            yield SyncScope.BLOCK, "an mma of waves"
        case Mma() | LoadMatrix() | StoreMatrix():
            yield SyncScope.WARP, "a matrix operation"
        case WarpgroupMma() | WarpgroupMmaWait():
            yield SyncScope.WARPGROUP, "a wgmma"
        case TensorMemoryAllocate() | TensorMemoryDeallocate():
            yield SyncScope.BLOCK, "an allocation of tensor memory"
        case TensorMemoryLoad():
            yield SyncScope.WARP, "a load from tensor memory"
        case SetMaxRegisters():
            yield SyncScope.WARPGROUP, "a setmaxnreg"
        case OrderedSequenceStart() | OrderedSequenceWait() | OrderedSequenceArrive():
            yield SyncScope.WARPGROUP, "a turn of warpgroups"


def guarded_shuffles(stmt: Stmt) -> Iterator[tuple[Shuffle, tuple[Expr, ...]]]:
    """Yield every shuffle in the expressions of ``stmt`` itself, with the conditions of the selects in a branch of
    which it stands."""
    for expr in expressions(stmt):
        if any(isinstance(e, Shuffle) for e in reads_of(expr)):
            yield from _guarded_shuffles(expr, ())


def _guarded_shuffles(expr: Expr, guards: tuple[Expr, ...]) -> Iterator[tuple[Shuffle, tuple[Expr, ...]]]:
    if isinstance(expr, Shuffle):
        yield expr, guards
    if isinstance(expr, Select):
        yield from _guarded_shuffles(expr.condition, guards)
        for branch in (expr.then, expr.otherwise):
            yield from _guarded_shuffles(branch, (*guards, expr.condition))
        return
    for child in expr.children:
        yield from _guarded_shuffles(child, guards)


@dataclass(frozen=True)
class UniformityAnalysis:
    """The analysis of one launch. ``ranges`` are those of the loops inside."""

    launch: Launch
    ranges: Ranges

    def is_divergent(self, expr: Expr, scope: SyncScope) -> bool:
        """Return whether threads of one group of ``scope`` may find different values. It is sound: True where
        unknown."""
        values: dict[str, Expr] = {}
        ranges: dict[str, Interval] = {**self.ranges}
        diverges: dict[str, SyncScope] = {}
        for binding in self.launch.axes:
            ranges[binding.var] = loop_range(binding.extent)
            terms = _delinearized(binding)
            if terms:
                values[binding.var] = sum((Var(t.name) * t.stride for t in terms), start=index(0))
            for t in terms:
                ranges[t.name], diverges[t.name] = loop_range(t.extent), t.diverges
            if not terms and binding.axis in _DIVERGES_WITHIN:
                diverges[binding.var] = _DIVERGES_WITHIN[binding.axis]
        uniform = frozenset(name for name in _registers_in(expr) if self._is_uniform_register(name, scope))
        granules = {SyncScope.WARP: (WARP_LANES,), SyncScope.WARPGROUP: (WARPGROUP_THREADS, _WARPGROUP_WARPS)}
        simplifier = Simplifier(IndexAnalysis(ranges))
        divergence = _Divergence(simplifier, diverges, scope, granules.get(scope, (self.launch.threads,)), uniform)
        return divergence.of(substitute(expr, values))

    def _is_uniform_register(self, name: str, scope: SyncScope) -> bool:
        """Return whether all threads of a group store the same values to a register buffer, under conditions that are
        the same in all of them, and nothing else writes it."""
        stored = False
        for stmt, conditions in _guarded_statements(self.launch.body, ()):
            if isinstance(stmt, Operation) and any(b.name == name for b in _buffers_of(stmt)):
                return False
            if isinstance(stmt, Store) and stmt.buffer.name == name:
                deciding = (stmt.value, *stmt.indices, *conditions, *([] if stmt.mask is None else [stmt.mask]))
                if any(_registers_in(e) or self.is_divergent(e, scope) for e in deciding):
                    return False
                stored = True
        return stored


def _registers_in(expr: Expr) -> set[str]:
    return {e.buffer.name for e in reads_of(expr) if isinstance(e, Load) and e.buffer.scope is MemoryScope.REGISTER}


def _guarded_statements(stmt: Stmt, conditions: tuple[Expr, ...]) -> Iterator[tuple[Stmt, tuple[Expr, ...]]]:
    """Yield every statement without a body, with the conditions that it stands under."""
    match stmt:
        case Seq(statements=statements):
            for below in statements:
                yield from _guarded_statements(below, conditions)
        case If(condition=condition, then=then):
            yield from _guarded_statements(then, (*conditions, condition))
        case For(body=body) | Allocate(body=body):
            yield from _guarded_statements(body, conditions)
        case _:
            yield stmt, conditions


def _buffers_of(stmt: Operation) -> Iterator[Buffer]:
    for f in fields(stmt):  # type: ignore[arg-type]
        value = getattr(stmt, f.name)
        yield from (b for b in (value if isinstance(value, tuple) else (value,)) if isinstance(b, Buffer))


@dataclass(frozen=True)
class _ThreadIndexTerm:
    """One addend ``name * stride`` of the number of a thread or a warp. ``diverges`` is the smallest group of threads
    within which it differs."""

    name: str
    stride: int
    extent: int
    diverges: SyncScope


def _delinearized(binding: AxisBinding) -> list[_ThreadIndexTerm]:
    """Return the number of a thread or a warp as a sum over warpgroups, warps and lanes; empty for any other axis."""
    var, extent = binding.var, binding.extent
    match binding.axis:
        case HardwareAxis.THREAD if extent % WARP_LANES == 0:
            groups, warps = -(-extent // WARPGROUP_THREADS), min(extent // WARP_LANES, _WARPGROUP_WARPS)
            return [
                _ThreadIndexTerm(f"{var}.group", WARPGROUP_THREADS, groups, SyncScope.BLOCK),
                _ThreadIndexTerm(f"{var}.warp", WARP_LANES, warps, SyncScope.WARPGROUP),
                _ThreadIndexTerm(f"{var}.lane", 1, WARP_LANES, SyncScope.WARP),
            ]
        case HardwareAxis.WARP:
            groups = -(-extent // _WARPGROUP_WARPS)
            return [
                _ThreadIndexTerm(f"{var}.group", _WARPGROUP_WARPS, groups, SyncScope.BLOCK),
                _ThreadIndexTerm(f"{var}.warp", 1, min(extent, _WARPGROUP_WARPS), SyncScope.WARPGROUP),
            ]
    return []


@dataclass(frozen=True)
class _Divergence:
    """Whether expressions differ within groups of ``scope``. ``diverges`` has the smallest group within which each
    variable differs. ``granules`` are numbers of threads or warps: a comparison of their numbers that only ever splits
    them at a multiple of one of these is the same in a whole group. ``uniform_registers`` names the register buffers
    that all threads of a group have the same values in."""

    simplifier: Simplifier
    diverges: Mapping[str, SyncScope]
    scope: SyncScope
    granules: tuple[int, ...]
    uniform_registers: frozenset[str]

    def of(self, expr: Expr) -> bool:
        simple = self.simplifier.simplify(expr)
        if not self._reads_divergent(simple):
            return False
        if isinstance(simple, Compare) and _compares_indices(simple):
            return all(
                any(self._reads_divergent(self.simplifier.simplify(form)) for form in _thresholds(simple, granule))
                for granule in self.granules
            )
        if simple.dtype.is_bool and not isinstance(simple, (Load, ClusterLoad, Shuffle)):
            return any(map(self.of, simple.children))
        return True

    def _reads_divergent(self, expr: Expr) -> bool:
        """Return whether ``expr``, as it stands, reads something that differs."""
        match expr:
            case Var(name=name):
                return name in self.diverges and self._is_within(self.diverges[name])
            case Load(buffer=buffer) if buffer.scope in (MemoryScope.LOCAL, MemoryScope.REGISTER):
                if buffer.name not in self.uniform_registers:
                    return True
            case Load(buffer=buffer) if buffer.scope is MemoryScope.SHARED and self._is_within(SyncScope.CLUSTER):
                return True
            case Shuffle(mode=ShuffleMode.INDEX, lane=lane, width=width) if width == WARP_LANES:
                if self.scope is SyncScope.WARP:
                    return self._reads_divergent(lane)
        return any(map(self._reads_divergent, expr.children))

    def _is_within(self, scope: SyncScope) -> bool:
        """Return whether what differs within groups of ``scope`` differs within those asked about."""
        return _WIDTH[scope] <= _WIDTH[self.scope]


def _compares_indices(compare: Compare) -> bool:
    return compare.a.dtype.name == "int64" and compare.lanes == 1


def _thresholds(compare: Compare, granule: int) -> tuple[Expr, ...]:
    """Index expressions that decide a comparison: it is uniform if they are. ``f >= 0`` holds exactly if
    ``f // granule >= 0`` does, in which the lanes often cancel out."""
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
    return tuple(Binary(BinaryOp.FLOORDIV, f, index(granule)) for f in forms)
