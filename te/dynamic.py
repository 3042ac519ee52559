"""Dynamic dimensions: workloads of which some dimensions have an extent that every call gives.

    X: float32[8192, 1024]    # dynamic, measured at 4096
    Y[i, j] = X[i, j] * 2

    K: float16[8, 32768, 128]    # dynamic keys_extent in dimension 1, measured at 8192

A dynamic dimension is one dimension of some inputs. Each stage reads it along one axis of its own, which may be
reduced. Bodies may read the extent of a call as a variable, so that a mask can say where the last keys are. Shapes have
the largest extents. ``at_extent`` gives the workload of one call, which is static; a kernel of the dynamic workload
computes the same for each of them.

Rows are the simplest case (``has_dynamic_rows``): one dynamic dimension, which is the first one of all its tensors and
which no stage reduces. The strides of row-major tensors do not depend on it.
"""

from collections.abc import Mapping
from dataclasses import replace

from ..core.dtypes import INDEX
from ..core.errors import InvalidParameter, InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var, const
from ..ir.rewrite import fresh_name, loads_of, map_expr
from ..ir.stmt import DynamicExtent
from .workload import Axis, DynamicDimension, Stage, Workload

_VARIABLE = "dynamic_extent"
SUFFIX = "_extent"
"""The name of an extent ends so."""

_Places = dict[tuple[str, int], int]
"""(tensor, dimension) -> the number of the dynamic dimension that it is."""


def check_dynamic(workload: Workload) -> None:
    """Raise InvalidWorkload unless each dynamic dimension of a workload is one of its inputs, has one largest extent,
    and is read along one axis by every stage; and unless each output depends on one."""
    shapes = {t.name: t.shape for t in workload.inputs}
    seen: set[tuple[str, int]] = set()
    for n, dynamic in enumerate(workload.dynamic):
        field = "/dynamic" if len(workload.dynamic) == 1 else f"/dynamic/{n}"
        _check_places(dynamic, shapes, field)
        if seen & dynamic.places:
            raise InvalidWorkload("a dimension of an input is dynamic twice", field=f"{field}/inputs")
        seen |= dynamic.places
        most = _most(workload, dynamic)
        if isinstance(dynamic.representative, bool) or not 1 <= dynamic.representative <= most:
            raise InvalidWorkload(
                f"the representative extent is {dynamic.representative!r}; allowed: 1 to {most}",
                field=f"{field}/representative",
            )
    if not workload.dynamic:
        return
    found = _places(workload)
    tensors = {name for name, _ in found}
    for stage in workload.stages:
        if any(load.buffer.name in tensors for load in loads_of(stage.body)):
            tensors.add(stage.name)
    static = [name for name in workload.outputs if name not in tensors]
    if static:
        raise InvalidWorkload(f"output {', '.join(static)} reads no dynamic dimension", field="/dynamic/inputs")


def _check_places(dynamic: DynamicDimension, shapes: Mapping[str, tuple[int, ...]], field: str) -> None:
    unknown = sorted(dynamic.inputs - shapes.keys())
    if unknown or not dynamic.places:
        given = ", ".join(unknown) or "none"
        raise InvalidWorkload(f"dynamic inputs {given}; allowed: {', '.join(shapes)}", field=f"{field}/inputs")
    extents = {shapes[name][d] if 0 <= d < len(shapes[name]) else 0 for name, d in dynamic.places}
    if len(extents) > 1 or 0 in extents:
        raise InvalidWorkload(
            "a dynamic dimension is one of each of its inputs, with the same largest extent in all of them; given: "
            + ", ".join(f"dimension {d} of {name}{list(shapes[name])}" for name, d in sorted(dynamic.places)),
            field=f"{field}/inputs",
        )


def _most(workload: Workload, dynamic: DynamicDimension) -> int:
    """Return the largest extent of a dynamic dimension."""
    name, d = min(dynamic.places)
    return next(t.shape[d] for t in workload.inputs if t.name == name)


def _places(workload: Workload) -> _Places:
    """Return the dynamic dimensions of all inputs and stages. Raises InvalidWorkload where a stage reads one at
    anything but an axis of its own that goes as far."""
    found: _Places = {place: n for n, dynamic in enumerate(workload.dynamic) for place in dynamic.places}
    for number, stage in enumerate(workload.stages):
        along: dict[str, int] = {}
        extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        for load in loads_of(stage.body):
            for d, i in enumerate(load.indices):
                n = found.get((load.buffer.name, d))
                if n is None:
                    continue
                named = isinstance(i, Var) and extents.get(i.name) == load.buffer.shape[d]
                if not named or along.setdefault(i.name, n) != n:  # type: ignore[attr-defined]
                    raise InvalidWorkload(
                        f"{stage.name} reads the dynamic dimension {d} of {load.buffer.name} at other than an axis of "
                        "its own: a dynamic dimension is not moved, split, joined or mixed with another one",
                        field=f"/stages/{number}/body",
                    )
        found |= {(stage.name, d): along[a.name] for d, a in enumerate(stage.axes) if a.name in along}
    return found


def dynamic_axes(workload: Workload) -> dict[str, int]:
    """Return the axes of a checked workload, also after stages of it were inlined, that go along dynamic dimensions ->
    the number of that dimension."""
    places = _places(workload) if workload.dynamic else {}
    return {name: n for stage in workload.stages for name, n in _axes(stage, places).items()}


def _axes(stage: Stage, places: _Places) -> dict[str, int]:
    """Return the axes of a checked stage that go along dynamic dimensions -> the number of that dimension."""
    return {
        i.name: places[load.buffer.name, d]
        for load in loads_of(stage.body)
        for d, i in enumerate(load.indices)
        if (load.buffer.name, d) in places and isinstance(i, Var)
    }


def has_dynamic_rows(workload: Workload) -> bool:
    """Return whether a checked workload has one dynamic dimension, which is the first one of all its tensors, outputs
    included, and is reduced nowhere."""
    if len(workload.dynamic) != 1:
        return False
    places = _places(workload)
    tensors = {name for name, _ in places}
    reduced = any(a.name in _axes(s, places) for s in workload.stages for a in s.reduce_axes)
    return all(d == 0 for _, d in places) and tensors.issuperset(workload.outputs) and not reduced


def dynamic_extents(workload: Workload) -> tuple[DynamicExtent, ...]:
    """Return what kernels of a checked workload are given: for each dynamic dimension the variable for its extent, and
    the parameters that have it. None where the workload is static."""
    if not workload.dynamic:
        return ()
    places = _places(workload)
    axes = {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    names = {t.name for t in workload.inputs} | {s.name for s in workload.stages} | axes
    names |= {d.name for d in workload.dynamic}
    parameters = {b.name for b in (*workload.inputs, *workload.output_buffers)}
    found = []
    for n, dynamic in enumerate(workload.dynamic):
        var = dynamic.name or fresh_name(_VARIABLE, names)
        names.add(var)
        here = frozenset(place for place, number in places.items() if number == n and place[0] in parameters)
        found.append(DynamicExtent(var, _most(workload, dynamic), here))
    return tuple(found)


def row_extent(workload: Workload) -> DynamicExtent | None:
    """Return the dynamic extent of a workload with dynamic rows (``has_dynamic_rows``); None where it is static."""
    return dynamic_extents(workload)[0] if workload.dynamic else None


def at_extent(workload: Workload, *extents: int) -> Workload:
    """Return the static workload of a call with one extent for each dynamic dimension; ``workload`` itself where it is
    static.

    Raises InvalidParameter for extents that the workload does not allow.
    """
    if not workload.dynamic:
        return workload
    if len(extents) != len(workload.dynamic):
        raise InvalidParameter(f"{len(extents)} extents; allowed: {len(workload.dynamic)}", field="extents")
    for given, extent in zip(dynamic_extents(workload), extents, strict=True):
        given.check(extent)
    return replace(resized(workload, *extents), dynamic=())


def resized(workload: Workload, *extents: int) -> Workload:
    """Return the workload with other largest extents, one for each dynamic dimension. What is left to the caller is to
    check the result where extents grow. Where bodies read an extent of a call, it is this one."""
    places = _places(workload)
    values = {d.name: const(extent, INDEX) for d, extent in zip(workload.dynamic, extents, strict=True)}

    def tensor(t: Buffer) -> Buffer:
        found = [places.get((t.name, d)) for d in range(len(t.shape))]
        sized = zip(t.shape, found, strict=True)
        return replace(t, shape=tuple(most if n is None else extents[n] for most, n in sized))

    def node(e: Expr) -> Expr:
        if isinstance(e, Load):
            return replace(e, buffer=tensor(e.buffer))
        return values.get(e.name, e) if isinstance(e, Var) else e

    def stage(s: Stage) -> Stage:
        along = _axes(s, places)

        def sized(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
            return tuple(Axis(a.name, extents[along[a.name]]) if a.name in along else a for a in axes)

        body = map_expr(s.body, node)
        return replace(s, tensor=tensor(s.tensor), axes=sized(s.axes), reduce_axes=sized(s.reduce_axes), body=body)

    return replace(
        workload,
        inputs=tuple(tensor(t) for t in workload.inputs),
        stages=tuple(stage(s) for s in workload.stages),
    )


def representative_extents(workload: Workload) -> tuple[int, ...]:
    """Return the extents that kernels of ``workload`` are measured at, one for each dynamic dimension."""
    return tuple(d.representative for d in workload.dynamic)


def at_representative(workload: Workload) -> Workload:
    """Return the static workload that kernels of ``workload`` are measured on; itself where it is static."""
    return at_extent(workload, *representative_extents(workload))


def with_dynamic(workload: Workload, inputs: frozenset[str] | None = None, representative: int = 0) -> Workload:
    """``workload`` with the first dimension of ``inputs`` dynamic, up to its extent there, measured at
    ``representative`` (0: at the largest extent). Without ``inputs`` these are the inputs whose first dimension is
    that of the first output, as its first axis reads it.

    Raises InvalidWorkload where that dimension cannot be dynamic.
    """
    if inputs is None:
        inputs = _inputs_of_first_axis(workload)
    shapes = {t.name: t.shape for t in workload.inputs}
    most = max((shapes[n][0] for n in inputs if shapes.get(n)), default=1)
    dynamic = DynamicDimension(frozenset((name, 0) for name in inputs), representative or most)
    made = replace(workload, dynamic=(dynamic,))
    check_dynamic(made)
    return made


def _inputs_of_first_axis(workload: Workload) -> frozenset[str]:
    """Return the inputs that are read at the first axis of the first output, alone, along their first dimension, also
    through earlier stages."""
    inputs = {t.name for t in workload.inputs}
    stages = {s.name: s for s in workload.stages}
    found: set[str] = set()
    pending = [workload.outputs[0]]
    seen: set[str] = set()
    while pending:
        stage = stages[pending.pop()]
        seen.add(stage.name)
        for load in loads_of(stage.body):
            if stage.axes and load.indices and load.indices[0] == Var(stage.axes[0].name):
                if load.buffer.shape[0] == stage.axes[0].extent and load.buffer.name in inputs:
                    found.add(load.buffer.name)
                elif load.buffer.name not in seen | inputs:
                    pending.append(load.buffer.name)
    return frozenset(found)
