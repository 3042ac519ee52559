"""Builds small kernels that the tests of passes start from."""

from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load, Var
from tilewright.ir.stmt import For, If, Kernel, LoopKind, Store


def guarded_copy(extent: int, factor: int, outer: LoopKind, inner: LoopKind) -> Kernel:
    """Return a kernel of ``C[i] = A[i] * 2`` in steps of ``factor`` with a guard for the tail."""
    a, c = Buffer("A", (extent,), float32), Buffer("C", (extent,), float32)
    at = Var("o") * factor + Var("t")
    body = If(at < extent, Store(c, (at,), Load(a, (at,)) * 2.0))
    loops = For("o", -(-extent // factor), outer, For("t", factor, inner, body))
    return Kernel("copy", (a,), (c,), (), loops)
