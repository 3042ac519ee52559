"""Kernels with a dynamic extent, which every call gives (``ir.stmt.DynamicExtent``).

The shapes of the parameters that have it, and the extents of loops and of grids, are those of the largest extent.
Guards with the variable of the extent keep a call inside its tensors, and its grid may have fewer blocks.
``kernel_at_extent`` gives the static kernel that one call is: what the interpreter runs, and what the runtime launches.
"""

from dataclasses import replace

from .buffer import Buffer
from .expr import ClusterLoad, Const, Expr, Load, index
from .rewrite import map_expr, map_expressions, map_statements, substitute
from .simplify import simplify
from .stmt import AxisBinding, DynamicExtent, Kernel, Launch, Operation, Stmt, Store


def kernel_at_extent(kernel: Kernel, extent: int) -> Kernel:
    """Return the static kernel that a call with ``extent`` runs; ``kernel`` itself where it is static.

    Raises InvalidParameter for an extent that the kernel does not allow.
    """
    dynamic = kernel.dynamic
    if dynamic is None:
        return kernel
    dynamic.check(extent)

    def sized(buffer: Buffer) -> Buffer:
        shape = dynamic.shape_at(buffer.name, buffer.shape, extent)
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
                return replace(s, axes=tuple(_bound(a, dynamic, extent) for a in axes))
        return s

    body = map_expressions(kernel.body, lambda e: map_expr(e, node))
    body = substitute(map_statements(body, statement), {dynamic.var: index(extent)})
    return replace(
        kernel,
        inputs=tuple(map(sized, kernel.inputs)),
        outputs=tuple(map(sized, kernel.outputs)),
        body=body,
        dynamic=None,
    )


def count_at_extent(count: Expr, dynamic: DynamicExtent, extent: int) -> int:
    """Return the value of an expression of the dynamic extent alone."""
    value = simplify(substitute(count, {dynamic.var: index(extent)}), {})
    assert isinstance(value, Const), f"{count} reads more than {dynamic.var}"
    return int(value.value)


def _bound(axis: AxisBinding, dynamic: DynamicExtent, extent: int) -> AxisBinding:
    if axis.count is None:
        return axis
    return AxisBinding(axis.var, count_at_extent(axis.count, dynamic, extent), axis.axis)
