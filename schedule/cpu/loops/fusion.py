"""What the CPU loop sketch computes together: light stages are inlined, and the rest is fused into groups.

A group has a *root*, whose whole tensor is written, and *members*, each computed at a loop of the root
(``compute_at``), as much of it as is needed there. There are three kinds of groups:

    tile      every member has one element for each element of the root: a product before its bias and activation
    row       members share only the ``depth`` leading axes: the maximum, the exponentials and the sum of a softmax row
    scalar    a reduction to a tensor without dimensions
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from ....ir.buffer import Buffer
from ....ir.expr import Binary, BinaryOp, Expr, Load, Select, Unary, UnaryOp, Var
from ....ir.rewrite import free_variables, fresh_name, loads_of, map_loads, substitute
from ....te.positions import without_positions
from ....te.workload import Axis, Stage, Workload
from .long_reductions import chunked
from .wraps import split_wraps

_LIGHT = {UnaryOp.NEG, UnaryOp.ABS, UnaryOp.NOT, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.RINT}
HEAVY = frozenset(UnaryOp) - _LIGHT
HEAVY_COST = 10
LIGHT_COST = 8
"""Work, in plain operations, that is repeated a few times rather than stored and read again."""
FEW_REPEATS = 4
STREAMED_COST = 16
"""Work that is done twice rather than stored and read again where a tensor does not stay in the caches."""
MOST_LOCAL_BYTES = 512 * 1024
"""How much of a member a task may hold."""
LONG_ROW = 1 << 16
"""A row of more elements alone is worth more than one thread."""


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """Stages that share loops. ``members`` come in the order of the stages, without the root. ``shared``: how many
    leading axes of the root each of them follows. ``same_shape``: how many groups of the plan have its shape, itself
    included."""

    kind: str
    root: Stage
    members: tuple[Stage, ...]
    shared: tuple[int, ...]
    same_shape: int = 1

    @property
    def depth(self) -> int:
        """How many leading axes of the root all members follow."""
        return min(self.shared, default=len(self.root.axes))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, the root last."""
        return (*self.members, self.root)

    @property
    def reductions(self) -> tuple[Stage, ...]:
        """The stages that reduce."""
        return tuple(s for s in self.stages if s.reducer is not None)

    @property
    def work(self) -> int:
        """About how many plain operations the group does."""
        return sum(points(s) * cost(s.body) for s in self.stages)


@dataclass(frozen=True, slots=True)
class FusionPlan:
    """A workload that computes the same, rewritten for fusion, and its groups in the order in which they run."""

    workload: Workload
    groups: tuple[FusedGroup, ...]

    @property
    def main(self) -> FusedGroup:
        """The group with the most work, but for those that only pad: the one whose loops are tuned."""
        padded = paddings(self.workload)
        return max(self.groups, key=lambda g: (g.root.name not in padded, g.work))


def points(stage: Stage) -> int:
    """Return how often the body of ``stage`` is evaluated."""
    return prod(a.extent for a in (*stage.axes, *stage.reduce_axes))


def cost(expr: Expr) -> int:
    """Return the work of one evaluation in plain operations, without that of indices."""
    return 1 if isinstance(expr, Load) else own_cost(expr) + sum(cost(c) for c in expr.children)


def own_cost(expr: Expr) -> int:
    """Return the work of one operation in plain operations, without that of its operands."""
    match expr:
        case Unary(op=op):
            return HEAVY_COST if op in HEAVY else 1
        case Binary(op=BinaryOp.POW):
            return HEAVY_COST
        case Binary(op=BinaryOp.DIV | BinaryOp.FLOORDIV | BinaryOp.MOD):
            return 4
    return 1 if expr.children else 0


def consumers(workload: Workload) -> dict[str, list[Stage]]:
    """Tensor name -> the stages that read it."""
    readers: dict[str, list[Stage]] = {}
    for stage in workload.stages:
        for name in {load.buffer.name for load in loads_of(stage.body)}:
            readers.setdefault(name, []).append(stage)
    return readers


def paddings(workload: Workload) -> tuple[str, ...]:
    """Return the stages that only choose between a load and something else, and are read more than once. Whether
    storing them is worth it, a knob says."""
    readers = consumers(workload)
    return tuple(
        s.name
        for s in workload.stages
        if s.reducer is None
        and s.name not in workload.outputs
        and isinstance(s.body, Select)
        and cost(s.body) <= 2 * LIGHT_COST + len(s.axes) * 8
        and repeats(s, readers.get(s.name, ())) > 1.5
        and all(r.reducer is not None for r in readers.get(s.name, ()))
    )


def repeats(stage: Stage, readers: Iterable[Stage]) -> float:
    """Return how often an element of ``stage`` is read, on average."""
    reads = sum(points(r) * sum(load.buffer.name == stage.name for load in loads_of(r.body)) for r in readers)
    return reads / max(stage.tensor.elements, 1)


def fusion_plan(workload: Workload, *, inline_paddings: bool, threads: int) -> FusionPlan:
    """Group the stages of ``workload`` for a target of ``threads`` threads. ``inline_paddings``: the stages that
    ``paddings`` names are inlined."""
    plain = without_positions(workload)
    workload = _by_axes(plain.workload)
    skipped = plain.compared | (frozenset() if inline_paddings else frozenset(paddings(workload)))
    workload = split_wraps(chunked(_inlined(workload, skipped, inline_paddings, threads), threads))
    forced: set[str] = set(workload.outputs)
    while True:
        groups = _grouped(workload, forced, threads)
        bad = {s.name for g in groups for s in _misfits(g)}
        if bad:
            forced |= bad
            continue
        bare = next((g.root for g in groups if g.root.reducer is not None and g.kind != "scalar"), None)
        if bare is None:
            shapes = [shape(g) for g in groups]
            return FusionPlan(workload, tuple(replace(g, same_shape=shapes.count(shape(g))) for g in groups))
        forced.add(bare.name)
        workload = with_epilogue(workload, bare)


def _by_axes(workload: Workload) -> Workload:
    """Return ``workload`` with axes of one element of the readers as indices of such dimensions, not 0. So stages are
    seen to follow the same axes."""

    def at_axes(stage: Stage) -> Stage:
        single = {n: Var(axis.name) for n, axis in enumerate(stage.axes) if axis.extent == 1}

        def moved(load: Load) -> Load:
            if load.buffer.name not in written:
                return load
            shape = load.buffer.shape
            return replace(
                load, indices=tuple(single.get(n, i) if shape[n] == 1 else i for n, i in enumerate(load.indices))
            )

        return replace(stage, body=map_loads(stage.body, moved))

    written = {s.name for s in workload.stages}
    return replace(workload, stages=tuple(map(at_axes, workload.stages)))


def _inlined(workload: Workload, skipped: frozenset[str], inline_paddings: bool, threads: int) -> Workload:
    """Return ``workload`` without the stages that cost less to repeat than to store."""
    wanted = set(paddings(workload)) if inline_paddings else set()
    for stage in workload.stages:
        if stage.reducer is not None or stage.name in workload.outputs or stage.name in skipped:
            continue
        readers = consumers(workload).get(stage.name, [])
        current = workload.stage(stage.name)
        times = repeats(current, readers)
        light = cost(current.body) <= LIGHT_COST and times <= FEW_REPEATS
        streamed = cost(current.body) <= STREAMED_COST and times <= 2 and _is_streamed(current, threads)
        if stage.name in wanted or times <= 1.01 or light or streamed or isinstance(current.body, Load):
            workload = inline_stage(workload, current)
    return workload


def _is_streamed(stage: Stage, threads: int) -> bool:
    """Return whether a tensor goes through memory: it does not fit the caches, and its rows are too few or too long for
    those who read it to take one at a time."""
    if stage.tensor.bytes <= threads * MOST_LOCAL_BYTES or len(stage.axes) < 1:
        return False
    depth = len(stage.axes) - 1
    return _has_long_rows(stage, depth, threads) or _row_bytes(stage, depth) > MOST_LOCAL_BYTES


def inline_stage(workload: Workload, stage: Stage) -> Workload:
    """Return ``workload`` with every load of ``stage`` replaced by its body, and the stage gone."""

    def body_at(load: Load) -> Expr:
        if load.buffer.name != stage.name:
            return load
        return substitute(stage.body, {a.name: i for a, i in zip(stage.axes, load.indices, strict=True)})

    rest = tuple(replace(s, body=map_loads(s.body, body_at)) for s in workload.stages if s.name != stage.name)
    return replace(workload, stages=rest)


def with_epilogue(workload: Workload, reduction: Stage) -> Workload:
    """Return ``workload`` with ``T[i] = sum ..`` as ``T_sum[i_r] = sum ..`` and ``T[i] = T_sum[i]``, whose loops can be
    tiled."""
    taken = {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    taken |= {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    name = fresh_name(f"{reduction.name}_{reduction.reducer}", taken)
    taken.add(name)
    axes: list[Axis] = []
    for axis in reduction.axes:
        axes.append(Axis(fresh_name(f"{axis.name}_r", taken), axis.extent))
        taken.add(axes[-1].name)
    renamed = substitute(reduction.body, {a.name: Var(r.name) for a, r in zip(reduction.axes, axes, strict=True)})
    tensor = Buffer(name, reduction.tensor.shape, reduction.tensor.dtype)
    inner = replace(reduction, tensor=tensor, axes=tuple(axes), body=renamed)
    outer = Stage(reduction.tensor, reduction.axes, Load(tensor, tuple(Var(a.name) for a in reduction.axes)))
    stages: list[Stage] = []
    for stage in workload.stages:
        stages.extend((inner, outer) if stage.name == reduction.name else (stage,))
    return replace(workload, stages=tuple(stages))


def is_contraction(stage: Stage) -> bool:
    """Return whether every operand of a reduction is used again along some axis of the result, so that tiles pay."""
    if stage.reducer is None:
        return False
    wide = {a.name for a in stage.axes if a.extent > 1}
    loads = loads_of(stage.body)
    return bool(loads) and all(wide - _used(load) for load in loads)


def _used(load: Load) -> frozenset[str]:
    return frozenset().union(*(free_variables(i) for i in load.indices)) if load.indices else frozenset()


def _grouped(workload: Workload, forced: set[str], threads: int) -> list[FusedGroup]:
    """Each stage joins the group of all its readers where that repeats no work, or starts a group of its own."""
    readers, padded = consumers(workload), paddings(workload)
    root_of: dict[str, Stage] = {}
    shared: dict[str, int] = {}
    for stage in reversed(workload.stages):
        reading = readers.get(stage.name, [])
        roots = {root_of[r.name].name for r in reading}
        root_of[stage.name], shared[stage.name] = stage, len(stage.axes)
        if stage.name in forced or len(roots) != 1:
            continue
        root = workload.stage(next(iter(roots)))
        depth = min(_prefix(stage, r, shared[r.name]) for r in reading)
        if _fuses(stage, root, depth, threads) and not (stage.name in padded and _is_image(root, depth, threads)):
            root_of[stage.name], shared[stage.name] = root, depth
    groups = []
    for root in workload.stages:
        if root_of[root.name].name != root.name:
            continue
        members = tuple(s for s in workload.stages if root_of[s.name].name == root.name and s.name != root.name)
        groups.append(_group(root, members, shared))
    return groups


def _group(root: Stage, members: tuple[Stage, ...], shared: Mapping[str, int]) -> FusedGroup:
    rank = len(root.axes)
    follows = tuple(shared[m.name] for m in members)
    whole = all(n == rank == len(m.axes) for n, m in zip(follows, members, strict=True))
    return FusedGroup("scalar" if rank == 0 else "tile" if whole else "row", root, members, follows)


def _prefix(stage: Stage, reader: Stage, shared: int) -> int:
    """Return how many leading dimensions of ``stage`` every load in ``reader`` indexes by the reader's own leading
    axes, of the same extents."""
    depth = min(shared, len(stage.axes))
    equal = [a.extent == b.extent for a, b in zip(stage.axes, reader.axes, strict=False)]
    depth = min(depth, equal.index(False) if False in equal else depth)
    for load in loads_of(reader.body):
        if load.buffer.name != stage.name:
            continue
        same = 0
        while same < depth and load.indices[same] == Var(reader.axes[same].name):
            same += 1
        depth = same
    return depth


def _fuses(stage: Stage, root: Stage, depth: int, threads: int) -> bool:
    rank = len(root.axes)
    if depth == rank == len(stage.axes) and rank > 0:
        return True
    if depth == 0 or is_contraction(stage):
        return False
    return not _has_long_rows(stage, depth, threads) and _row_bytes(stage, depth) <= MOST_LOCAL_BYTES


def _is_image(root: Stage, depth: int, threads: int) -> bool:
    """Return whether rows of ``depth`` leading axes are too few for all threads, or have vectors of one element: those
    of an image with channels last, whose windows want tiles."""
    return prod(a.extent for a in root.axes[:depth]) < threads or root.axes[-1].extent == 1


def _has_long_rows(stage: Stage, depth: int, threads: int) -> bool:
    """Return whether rows of ``depth`` leading axes are so few and so long that each is worth several threads."""
    few = prod(stage.tensor.shape[:depth]) < 2 * threads
    return few and max(stage.tensor.elements, points(stage)) > LONG_ROW


def shape(group: FusedGroup) -> tuple[object, ...]:
    """Return what groups that differ only in names have in common."""
    return group.kind, [([a.extent for a in s.axes], [a.extent for a in s.reduce_axes]) for s in group.stages]


def _row_bytes(stage: Stage, depth: int) -> int:
    return prod(stage.tensor.shape[depth:]) * stage.tensor.dtype.bytes


def _misfits(group: FusedGroup) -> Iterable[Stage]:
    """Return the members that cannot stay: their rows are too long at the depth found, or a contraction in the group
    wants tiles."""
    if group.kind == "scalar" and group.members:
        return group.members
    if group.kind != "row":
        return ()
    rank = len(group.root.axes)
    loose = [m for m, n in zip(group.members, group.shared, strict=True) if not n == rank == len(m.axes)]
    contractions = [m for m in group.members if is_contraction(m)]
    if contractions:  # what stands between two of them stays together
        operands = {load.buffer.name for m in contractions for load in loads_of(m.body)}
        return [m for m in loose if m in contractions] or [m for m in loose if m.name in operands] or loose
    return [m for m in group.members if _row_bytes(m, group.depth) > MOST_LOCAL_BYTES]
