"""Counts what a kernel asks of the hardware: bytes of global memory, some of which caches may serve, and operations of
the matrix units."""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import prod

from ..ir.buffer import Buffer, MemoryScope
from ..ir.expr import Binary, BinaryOp, Compare, CompareOp, Const, Expr, Load, Logic, LogicOp, Var, distinct_nodes
from ..ir.gpu.async_copy import CopyAsync
from ..ir.gpu.atomic import AtomicReduce
from ..ir.gpu.barrier import WARPGROUP_THREADS
from ..ir.gpu.bulk_copy import BulkCopy
from ..ir.gpu.mma import MMA_ATOMS, Mma
from ..ir.gpu.tcgen05 import SCALE_ROWS, BlockScaledMma, TensorMemoryMma
from ..ir.gpu.tma import TmaLoad, TmaStore
from ..ir.gpu.wgmma import WGMMA_M, WarpgroupMma
from ..ir.stmt import Allocate, For, If, Kernel, Launch, Seq, Stmt, Store, expressions


def accessed_bytes(kernel: Kernel) -> int:
    """Return the bytes that all loads and stores of global buffers ask for, repeated ones included.

    A condition that selects some values of one variable, such as the first thread or every 32nd, counts for the share
    that it selects. Any other condition counts as if it held.
    """
    return int(_total(kernel.body, {}, _bytes))


def matrix_operations(kernel: Kernel) -> int:
    """Return the multiplications and additions that matrix instructions do, padding included. Conditions count as for
    ``accessed_bytes``."""
    return int(_total(kernel.body, {}, _multiply_adds))


def _total(stmt: Stmt, extents: Mapping[str, int], own: Callable[[Stmt], Fraction]) -> Fraction:
    """Return the sum of ``own`` over ``stmt`` and all statements below it, for all threads and iterations."""
    match stmt:
        case Seq(statements=statements):
            return sum((_total(s, extents, own) for s in statements), Fraction(0))
        case For(var=var, extent=extent, body=body):
            return extent * _total(body, {**extents, var: extent}, own)
        case Launch(axes=axes, body=body):
            inside = {**extents, **{a.var: a.extent for a in axes}}
            return prod(a.extent for a in axes) * _total(body, inside, own)
        case If(condition=condition, then=then):
            return own(stmt) + _fraction(condition, extents) * _total(then, _inside(condition, extents), own)
        case Allocate(body=body):
            return _total(body, extents, own)
        case Store(mask=mask) if mask is not None:
            return _fraction(mask, extents) * own(stmt)
    return own(stmt)


def _bytes(stmt: Stmt) -> Fraction:
    """Return the bytes of global memory that ``stmt`` itself accesses."""
    loaded = _loaded_bytes(expressions(stmt))
    match stmt:
        case Store(buffer=buffer, indices=indices):
            return _global_bytes(buffer, max((i.lanes for i in indices), default=1)) + loaded
        case CopyAsync(source=source, elements=elements) | BulkCopy(source=source, elements=elements):
            return _global_bytes(source, elements) + loaded
        case AtomicReduce(target=buffer):
            return _global_bytes(buffer, 1) + loaded
        case TmaLoad(source=tensor, box=box) | TmaStore(target=tensor, box=box):
            return _global_bytes(tensor, prod(box)) + loaded
    return loaded


def _multiply_adds(stmt: Stmt) -> Fraction:
    """Return one thread's share of the multiplications and additions of ``stmt`` itself."""
    match stmt:
        case Mma(atom=atom):
            known = MMA_ATOMS[atom]
            return Fraction(2 * known.m * known.n * known.k, known.lanes)
        case WarpgroupMma(n=n, k=k):
            return Fraction(2 * WGMMA_M * n * k, WARPGROUP_THREADS)
        case TensorMemoryMma(m=m, n=n, k=k):
            return Fraction(2 * m * n * k)
        case BlockScaledMma(n=n, k=k):
            return Fraction(2 * SCALE_ROWS * n * k)
    return Fraction(0)


def _global_bytes(buffer: Buffer, elements: int) -> Fraction:
    return Fraction(elements * buffer.dtype.bytes if buffer.scope is MemoryScope.GLOBAL else 0)


def _loaded_bytes(roots: Iterable[Expr]) -> Fraction:
    """Return the bytes of global memory that the loads in expressions access. A load that they share counts once."""
    loads = (expr for expr in distinct_nodes(*roots) if isinstance(expr, Load))
    return sum((_global_bytes(load.buffer, load.lanes) for load in loads), Fraction(0))


def _fraction(condition: Expr, extents: Mapping[str, int]) -> Fraction:
    """Return the fraction of the values of its one variable for which ``condition`` holds; 1 for other conditions."""
    match condition:
        case Logic(op=LogicOp.AND, a=a, b=b):
            return _fraction(a, extents) * _fraction(b, extents)
        case Compare(op=op, a=Var(name=name), b=Const(value=value)) if name in extents:
            return _fraction_of_range(op, int(value), extents[name])
        case Compare(op=op, a=Binary(op=BinaryOp.MOD, a=Var(name=name), b=Const(value=period)), b=Const(value=value)):
            if name in extents and 0 < int(period) <= extents[name]:
                return _fraction_of_range(op, int(value), int(period))
    return Fraction(1)


def _inside(condition: Expr, extents: Mapping[str, int]) -> Mapping[str, int]:
    """Return how many values variables have where ``condition`` holds, so far as it says that they are below one."""
    match condition:
        case Logic(op=LogicOp.AND, a=a, b=b):
            return _inside(b, _inside(a, extents))
        case Compare(op=CompareOp.LT, a=Var(name=name), b=Const(value=value)) if 0 < int(value) < extents.get(name, 0):
            return {**extents, name: int(value)}
    return extents


def _fraction_of_range(op: CompareOp, value: int, extent: int) -> Fraction:
    """Return the fraction of ``range(extent)`` that compares to ``value`` by ``op``; 1 for other operators."""
    below = min(max(value, 0), extent)
    match op:
        case CompareOp.EQ:
            return Fraction(int(0 <= value < extent), extent)
        case CompareOp.LT:
            return Fraction(below, extent)
        case CompareOp.GE:
            return Fraction(extent - below, extent)
    return Fraction(1)
