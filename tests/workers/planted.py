"""Bugs as a code generator makes them, each planted in a real kernel on its road from the passes to the compiler.

Builder children call ``build`` in place of the product's own: it lowers a schedule of a real sketch, plants the bug
that the ``planted`` knob names in the final IR or in the LLVM IR, and compiles the result.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from tilewright.codegen.backend import CompiledKernel
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish, lower
from tilewright.core.dtypes import float16
from tilewright.core.errors import InvalidParameter
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.core.trial import Reason
from tilewright.ir.expr import Binary, BinaryOp, Broadcast, Cast, Const, Expr, Load, Ramp, Var, index
from tilewright.ir.rewrite import map_expr, map_expressions, map_loads, map_statements, stores_of
from tilewright.ir.stmt import Allocate, For, If, Kernel, LoopKind, Stmt, Store
from tilewright.schedule.sketches import sketches_for
from tilewright.te.build import compute, placeholder, workload
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

NONE = "none"
"""A kernel as it should be."""
SKETCHES = {"blocks": "cpu_gemm", "pairs": "cpu_gemm_dot", "bytes": "cpu_gemm_dot"}
"""Workloads that one sketch is meant to write; others are written by the first that can."""


@cache
def workload_named(name: str) -> Workload:
    """Odd sizes throughout: every kernel has remainders."""
    if name == "floor_divide":
        x = placeholder((33, 65), "int32", name="X")
        return workload(compute((33, 65), lambda i, j: x[i, j] // 7, name="Y"))
    known: dict[str, tuple[str, dict[str, object]]] = {
        "matmul": ("matmul", {"m": 37, "n": 50, "k": 50}),
        "matmul_int8": ("matmul", {"m": 37, "n": 50, "k": 50, "dtype": "int8"}),
        "softmax": ("softmax", {"rows": 33, "columns": 65}),
        "blocks": ("matmul", {"m": 149, "n": 203, "k": 130}),
        "pairs": ("matmul", {"m": 149, "n": 203, "k": 130, "dtype": "bfloat16"}),
        "bytes": ("matmul", {"m": 149, "n": 203, "k": 130, "dtype": "int8"}),
    }
    operator, parameters = known[name]
    return OPERATORS[operator].workload(parameters)


def is_written(name: str, target: Target) -> bool:
    """Whether the target has the instructions that the workload's sketch is about."""
    return name not in SKETCHES or any(s.name == SKETCHES[name] for s in sketches_for(workload_named(name), target))


@cache
def schedule(name: str, target: Target, planted: str = NONE) -> Schedule:
    """The first schedule of the workload called so, with a bug planted; of those in blocks, one that packs both
    operands."""
    work = workload_named(name)
    wanted = SKETCHES.get(name)
    sketch = next(s for s in sketches_for(work, target) if wanted in (None, s.name))
    space = sketch.space(work, target, limit=64 if wanted is None else 10_000)
    schedules = (space.schedule(row) for row in range(len(space)))
    chosen = next(s for s in schedules if wanted is None or s["pack_a"] == s["pack_b"] == "whole")
    return Schedule.of(chosen.sketch, chosen.version, {**dict(chosen.knobs), "planted": planted})


def build(work: Workload, target: Target, chosen: Schedule) -> CompiledKernel:
    """Raises InvalidParameter where the kernel has no place for the bug."""
    planted = str(chosen["planted"])
    knobs = {name: value for name, value in chosen.knobs if name != "planted"}
    lowered = lower(work, target, Schedule.of(chosen.sketch, chosen.version, knobs))
    if planted == NONE:
        return build_kernel(lowered, target)
    bug, backend = BUGS[planted], backend_for(target)
    source = backend.emit(bug.in_kernel(finish(bug.before_passes(lowered), target)), target)
    wrong = replace(source, text=bug.in_text(source.text))
    if wrong == backend.emit(finish(lowered, target), target):
        raise InvalidParameter(f"nothing to plant {planted} in", field="planted")
    return backend.compile(wrong, target)


def _results(kernel: Kernel) -> list[Store]:
    names = {b.name for b in kernel.outputs}
    return [s for s in stores_of(kernel.body) if s.buffer.name in names]


def _statements(kernel: Kernel, change: Callable[[Stmt], Stmt]) -> Kernel:
    return replace(kernel, body=map_statements(kernel.body, change))


def _loads(kernel: Kernel, change: Callable[[Load], Expr]) -> Kernel:
    return replace(kernel, body=map_loads(kernel.body, change))


def _each_result(kernel: Kernel, change: Callable[[Store], Stmt]) -> Kernel:
    """The kernel with every store to an output changed."""
    results = _results(kernel)
    return _statements(kernel, lambda s: change(s) if isinstance(s, Store) and s in results else s)


def _extents(kernel: Kernel, kind: LoopKind, more: int) -> Kernel:
    """Innermost loops of a kind with so many iterations more."""

    def at(s: Stmt) -> Stmt:
        inner = isinstance(s, For) and s.kind is kind and not any(x in results for x in stores_of(s))
        if isinstance(s, For) and s.kind is kind and (inner or kind is LoopKind.PARALLEL):
            return replace(s, extent=s.extent + more)
        return s

    results = _results(kernel)
    return _statements(kernel, at)


def _swap_strides(kernel: Kernel) -> Kernel:
    second = kernel.inputs[1]
    return _loads(kernel, lambda e: replace(e, indices=e.indices[::-1]) if e.buffer == second else e)


def _next_element(kernel: Kernel) -> Kernel:
    first = kernel.inputs[0]

    def at(e: Load) -> Expr:
        return replace(e, indices=(e.indices[0], e.indices[1] + 1)) if e.buffer == first else e

    return _loads(kernel, at)


def _stale(kernel: Kernel) -> Kernel:
    """The sum of a row starts from that of the row before: its buffer outlives a task, and is cleared in the first."""
    total = next(
        s.buffer for s in _allocations(kernel.body) if s.buffer.name.startswith("total") and s.buffer.elements == 1
    )

    def at(s: Stmt) -> Stmt:
        if isinstance(s, Allocate) and s.buffer == total:
            return s.body
        if isinstance(s, Store) and s.buffer == total and not _reads(s.value, total.name):
            return If(Var("task") < 1, s)
        if isinstance(s, For) and s.kind is LoopKind.PARALLEL:
            return Allocate(total, replace(s, kind=LoopKind.SERIAL))
        return s

    return _statements(kernel, at)


def _stale_sums(kernel: Kernel) -> Kernel:
    """The accumulators of a tile start from those of the tile before: they are cleared for the first one alone."""
    sums = next(s.buffer for s in _allocations(kernel.body) if s.buffer.name.startswith("accumulators"))

    def at(s: Stmt) -> Stmt:
        if isinstance(s, Allocate) and s.buffer == sums:
            return s.body
        if isinstance(s, Store) and s.buffer == sums and not _reads(s.value, sums.name):
            return If(Var("tile") < 1, s)
        if isinstance(s, For) and s.var == "tile":
            return Allocate(sums, s)
        return s

    return _statements(kernel, at)


def _last_panel_left_out(kernel: Kernel) -> Kernel:
    """What is packed of an operand ends a panel too early."""
    return _statements(
        kernel, lambda s: replace(s, extent=s.extent - 1) if isinstance(s, For) and s.var == "packed_panel" else s
    )


def _unmasked(kernel: Kernel) -> Kernel:
    return _each_result(kernel, lambda s: replace(s, mask=None))


def _neighbours_swapped(kernel: Kernel) -> Kernel:
    """Of two places of k that stand side by side in one operand, the second comes first."""

    def at(s: Stmt) -> Stmt:
        if not isinstance(s, Store) or not s.buffer.name.startswith("rows"):
            return s
        first = s.indices[0]
        assert isinstance(first, Const)
        return replace(s, indices=(index(int(first.value) ^ 1), *s.indices[1:]))

    return _statements(kernel, at)


def _shift_kept(kernel: Kernel) -> Kernel:
    """Bytes with a sign are shifted to such without; what that adds to a sum is not taken off again."""

    def at(s: Stmt) -> Stmt:
        if isinstance(s, Store) and isinstance(s.value, Binary) and _reads(s.value.b, "excess"):
            return replace(s, value=s.value.a)
        return s

    return _statements(kernel, at)


def _allocations(body: Stmt) -> list[Allocate]:
    found: list[Allocate] = []

    def look(s: Stmt) -> Stmt:
        if isinstance(s, Allocate):
            found.append(s)
        return s

    map_statements(body, look)
    return found


def _reads(expr: Expr, name: str) -> bool:
    if isinstance(expr, Load) and expr.buffer.name == name:
        return True
    return any(_reads(child, name) for child in expr.children)


def _round_each_step(kernel: Kernel) -> Kernel:
    """Sums are rounded to half precision after every term."""

    def at(s: Stmt) -> Stmt:
        if isinstance(s, Store) and _reads(s.value, s.buffer.name):
            return replace(s, value=Cast(Cast(s.value, float16), s.value.dtype))
        return s

    return _statements(kernel, at)


def _swap_operands(kernel: Kernel) -> Kernel:
    def at(e: Expr) -> Expr:
        swapped = isinstance(e, Binary) and e.op is BinaryOp.SUB and e.dtype.is_float
        return Binary(BinaryOp.SUB, e.b, e.a) if isinstance(e, Binary) and swapped else e

    return replace(kernel, body=map_expressions(kernel.body, lambda e: map_expr(e, at)))


def _drop_guards(kernel: Kernel) -> Kernel:
    """Results are stored whether or not there is a place for them: the guards that become masks are gone."""
    results = _results(kernel)

    def at(s: Stmt) -> Stmt:
        return s.then if isinstance(s, If) and any(x in results for x in stores_of(s)) else s

    return _statements(kernel, at)


def _lose_lanes(store: Store) -> Stmt:
    """The upper half of a vector is not stored."""
    lanes = max(i.lanes for i in store.indices)
    if lanes < 2 or store.mask is not None:
        return store
    return replace(store, mask=Ramp(index(0), 1, lanes) < Broadcast(index(lanes // 2), lanes))


def _into_input(kernel: Kernel) -> Kernel:
    return _each_result(kernel, lambda s: replace(s, buffer=kernel.inputs[0]))


def _same(kernel: Kernel) -> Kernel:
    return kernel


def _text(pattern: str, instead: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, instead, text)


@dataclass(frozen=True)
class Bug:
    """``name`` of the workload it is planted in, ``reason`` it must fail for, and ``says``: part of the detail."""

    name: str
    reason: Reason
    says: str
    in_kernel: Callable[[Kernel], Kernel] = _same
    before_passes: Callable[[Kernel], Kernel] = _same
    in_text: Callable[[str], str] = str


BUGS: Mapping[str, Bug] = {
    "bound_one_short": Bug("matmul", Reason.WRONG_RESULT, "C[0, 0] is", lambda k: _extents(k, LoopKind.SERIAL, -1)),
    "bound_one_long": Bug(
        "softmax", Reason.OUT_OF_BOUNDS, "Y was written past its end", lambda k: _extents(k, LoopKind.PARALLEL, 1)
    ),
    "task_left_out": Bug(
        "softmax", Reason.UNWRITTEN, "65 of 2145 elements", lambda k: _extents(k, LoopKind.PARALLEL, -1)
    ),
    "dropped_mask": Bug("matmul", Reason.OUT_OF_BOUNDS, "C was written past its end", before_passes=_drop_guards),
    "lost_lanes": Bug("softmax", Reason.UNWRITTEN, "never written", lambda k: _each_result(k, _lose_lanes)),
    "swapped_strides": Bug("matmul", Reason.WRONG_RESULT, "C[0, 0] is", _swap_strides),
    "next_element": Bug("matmul", Reason.WRONG_RESULT, "C[0, 0] is", _next_element),
    "stale_accumulator": Bug("softmax", Reason.WRONG_RESULT, "Y[1, 0] is", _stale),
    "swapped_operands": Bug("softmax", Reason.WRONG_RESULT, "Y[0, 0] is", _swap_operands),
    "written_input": Bug("softmax", Reason.OUT_OF_BOUNDS, "input X was written", _into_input),
    "rounded_at_each_step": Bug("matmul", Reason.WRONG_RESULT, "times the tolerance", _round_each_step),
    "rounded_towards_zero": Bug(  # the step from a truncated quotient to the floor is lost
        "floor_divide",
        Reason.WRONG_RESULT,
        "Y[",
        in_text=_text(r"(= and <\d+ x i1> %\S+), %\S+", r"\1, zeroinitializer"),
    ),
    "lost_sign": Bug("matmul_int8", Reason.WRONG_RESULT, "C[", in_text=_text(r"\bsext\b", "zext")),
    "false_alignment": Bug(
        "softmax",
        Reason.ILLEGAL_ACCESS,
        "SIGSEGV",
        in_text=_text(r"(store <\d+ x float> .*), align 4\b", r"\1, align 64"),
    ),
    "stale_sums": Bug("blocks", Reason.WRONG_RESULT, "C[", _stale_sums),
    "last_panel_left_out": Bug("blocks", Reason.WRONG_RESULT, "C[", _last_panel_left_out),
    "dropped_edge_mask": Bug("blocks", Reason.OUT_OF_BOUNDS, "C was written past its end", _unmasked),
    "swapped_neighbours": Bug("pairs", Reason.WRONG_RESULT, "C[0, 0] is", _neighbours_swapped),
    "shift_kept": Bug("bytes", Reason.WRONG_RESULT, "C[0, 0] is", _shift_kept),
    "loop_without_step": Bug(
        "matmul", Reason.TIMEOUT, "check took over", in_text=_text(r"(= add nuw nsw i64 %k\S*), 1\b", r"\1, 0")
    ),
}
"""Name -> the bug."""
