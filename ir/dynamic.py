"""Kernels with dynamic extents, which every call gives (``ir.stmt.DynamicExtent``).

The shapes of the parameters that have it, and the extents of loops and of grids, are those of the largest extent.
Guards with the variable of the extent keep a call inside its tensors, and its grid may have fewer blocks. A launch with
no blocks is left out, so that a kernel may have one function for few rows and another one for many.
``kernel_at_extent`` gives the static kernel that one call is: what the interpreter runs, and what the runtime launches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.errors import InvalidParameter
from .buffer import Buffer
from .expr import Broadcast, ClusterLoad, Const, Expr, Load, Ramp, Var, index
from .rewrite import map_expr, map_expressions, map_statements, substitute
from .simplify import simplify
from .stmt import AxisBinding, DynamicExtent, Kernel, Launch, Operation, Stmt, Store, seq


def kernel_at_extent(kernel: Kernel, *extents: int) -> Kernel:
    """Return the static kernel that a call with one extent for each dynamic one runs; ``kernel`` itself where it is
    static.

    Raises InvalidParameter for extents that the kernel does not allow.
    """
    dynamic = kernel.dynamic
    if not dynamic:
        return kernel
    check_extents(dynamic, extents)

    def sized(buffer: Buffer) -> Buffer:
        shape = shape_at_extent(dynamic, buffer.name, buffer.shape, extents)
        return buffer if shape == buffer.shape else replace(buffer, shape=shape)

    def node(e: Expr) -> Expr:
        return replace(e, buffer=sized(e.buffer)) if isinstance(e, Load | ClusterLoad) else e

    def statement(s: Stmt) -> Stmt:
        match s:
            case Store(buffer=buffer):
                return replace(s, buffer=sized(buffer))
            case Operation():
                return s.with_buffers([sized(b) for b in s.buffers])
            case Launch(axes=axes):
                return replace(s, axes=tuple(_bound(a, dynamic, extents) for a in axes))
        return s

    body = map_expressions(kernel.body, lambda e: map_expr(e, node))
    body = substitute(map_statements(body, statement), _values(dynamic, extents))
    taken = [launch for launch in replace(kernel, body=body).launches if all(launch.blocks)]
    return replace(
        kernel,
        inputs=tuple(map(sized, kernel.inputs)),
        outputs=tuple(map(sized, kernel.outputs)),
        body=seq(*taken),
        dynamic=(),
    )


def check_extents(dynamic: Sequence[DynamicExtent], extents: Sequence[int]) -> None:
    """Raise InvalidParameter unless a call may have these extents."""
    if len(extents) != len(dynamic):
        names = ", ".join(d.var for d in dynamic)
        raise InvalidParameter(f"{len(extents)} extents; allowed: one for each of {names}", field="extent")
    for given, extent in zip(dynamic, extents, strict=True):
        given.check(extent)


def shape_at_extent(
    dynamic: Sequence[DynamicExtent], name: str, shape: tuple[int, ...], extents: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape that a parameter, or a view of it, has at extents (``DynamicExtent.shape_at``)."""
    for given, extent in zip(dynamic, extents, strict=True):
        shape = given.shape_at(name, shape, extent)
    return shape


def count_at_extent(count: Expr, dynamic: Sequence[DynamicExtent], extents: Sequence[int]) -> int:
    """Return the value of an expression of dynamic extents alone."""
    value = simplify(substitute(count, _values(dynamic, extents)), {})
    assert isinstance(value, Const), f"{count} reads more than {', '.join(d.var for d in dynamic)}"
    return int(value.value)


def with_dynamic_strides(kernel: Kernel) -> Kernel:
    """Return ``kernel`` with addresses wherever a thread accesses a parameter whose strides depend on an extent. That
    is so where a dimension other than its first one is dynamic. The address stands in place of the last index, and 0 in
    place of the others. TMA knows the strides of a call from its tensor maps."""
    strided = {name for extent in kernel.dynamic for name, d in extent.places if d > 0}
    if not strided:
        return kernel
    variables = {place: Var(extent.var) for extent in kernel.dynamic for place in extent.places}

    def address(buffer: Buffer, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        *outer, last = indices
        lanes = max(i.lanes for i in indices)
        total: Expr = index(0)
        for d, i in enumerate(outer):
            total = total * _extent_of(buffer, d, variables) + (i.value if isinstance(i, Broadcast) else i)
        total = total * _extent_of(buffer, len(outer), variables)
        zeros = [Broadcast(index(0), lanes) if lanes > 1 else index(0)] * len(outer)
        if isinstance(last, Ramp):
            return (*zeros, Ramp(total + last.base, last.stride, last.count))
        assert lanes == 1, f"{buffer.name} is accessed at vectors that are not along its last dimension"
        return (*zeros, total + last)

    def load(e: Expr) -> Expr:
        return (
            replace(e, indices=address(e.buffer, e.indices)) if isinstance(e, Load) and e.buffer.name in strided else e
        )

    def statement(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer.name in strided:
            return replace(s, indices=address(s.buffer, s.indices))
        return s

    body = map_expressions(kernel.body, lambda e: map_expr(e, load))
    return replace(kernel, body=map_statements(body, statement))


def _extent_of(buffer: Buffer, d: int, variables: Mapping[tuple[str, int], Expr]) -> Expr:
    return variables.get((buffer.name, d), index(buffer.shape[d]))


def _values(dynamic: Sequence[DynamicExtent], extents: Sequence[int]) -> dict[str, Expr]:
    return {d.var: index(extent) for d, extent in zip(dynamic, extents, strict=True)}


def _bound(axis: AxisBinding, dynamic: Sequence[DynamicExtent], extents: Sequence[int]) -> AxisBinding:
    if axis.count is None:
        return axis
    return AxisBinding(axis.var, count_at_extent(axis.count, dynamic, extents), axis.axis)
