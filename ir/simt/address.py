"""Addresses in the interpreter of launches: which element each thread accesses, and whether that is within bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bounds import interval_of, loop_range
from ..buffer import Buffer
from ..expr import Expr, Var
from ..interpreter.memory import Array
from ..linear_form import LANE, LinearForm, linear_form, sum_of
from .context import LaunchClosure, LaunchContext, LaunchState, spread_to
from .memory import GlobalMemory, SharedMemory

CompileExpr = Callable[[Expr, LaunchContext], LaunchClosure]
"""Turns an expression into a closure. ``expressions`` passes it in, because it builds on this module."""

CheckedMemory = GlobalMemory | SharedMemory
"""Memory that threads share, so that accesses to it are checked for races."""


def is_uniform(value: Any) -> bool:
    """Return whether a value is one number for all threads."""
    return not isinstance(value, np.ndarray) or value.ndim == 0


@dataclass(frozen=True)
class Address:
    """Which elements an access goes to: their numbers are ``base + steps``.

    ``base`` gives an int, [threads] or [lanes, threads]. ``steps`` is int64[lanes, 1]: the steps of evenly spaced
    lanes. ``check`` raises where a thread that runs leaves the buffer, and gives who is inside; None for all.
    """

    base: LaunchClosure
    check: Callable[[LaunchState], Array | None]
    steps: Array | None

    def flat(self, state: LaunchState) -> Any:
        """Return the element numbers. Those of threads that do not run are in bounds too."""
        inside = self.check(state)
        found = self.base(state) if self.steps is None else self.base(state) + self.steps
        return found if inside is None else np.where(inside, found, 0)


def address_of(indices: tuple[Expr, ...], buffer: Buffer, context: LaunchContext, compile_: CompileExpr) -> Address:
    """Return the address of an access: row-major element numbers, or the strides of the buffer's layout without its
    swizzle."""
    form = LinearForm({})
    for i, stride in zip(indices, buffer.strides, strict=True):
        form = form.plus(linear_form(i), stride)
    steps = None if form.lanes == 1 else np.arange(form.lanes, dtype=np.int64)[:, None] * form.stride
    base = sum_closure(form.without((LANE,)), context, compile_)
    return Address(base, _bounds_check(indices, buffer, context, compile_), steps)


def sum_closure(form: LinearForm, context: LaunchContext, compile_: CompileExpr) -> LaunchClosure:
    """Return the closure of a linear form. What depends on variables of the launch alone is computed once per chunk,
    and variables of loops stay plain numbers."""
    invariant: dict[Expr, int] = {}
    loops: list[tuple[int, int]] = []
    others: list[tuple[LaunchClosure, int]] = []
    constant = form.constant
    for atom, c in form.terms.items():
        if atom.lanes == 1 and context.is_launch_invariant(atom):
            invariant[atom] = c
        elif isinstance(atom, Var):
            loops.append((context.slots[atom.name], c))
        else:
            others.append((compile_(atom, context), c))
    hoisted = None
    if invariant:
        hoisted = compile_(sum_of(invariant.items(), constant), context)
        constant = 0

    def add(state: LaunchState) -> Any:
        env, result = state.env, constant
        for slot, c in loops:
            result += env[slot] * c
        if hoisted is not None:
            result = hoisted(state) + result
        for closure, c in others:
            result = result + closure(state) * c
        return result

    if hoisted is not None and not loops and not others:
        return hoisted
    return add


def _bounds_check(
    indices: tuple[Expr, ...], buffer: Buffer, context: LaunchContext, compile_: CompileExpr
) -> Callable[[LaunchState], Array | None]:
    """Return a closure that raises where a thread that runs leaves the buffer, and gives who is inside; None for
    all."""
    unproven = [
        (compile_(i, context), extent)
        for i, extent in zip(indices, buffer.shape, strict=True)
        if not interval_of(i, context.ranges).within(loop_range(extent))
    ]
    if not unproven:
        return lambda state: None
    closures = [compile_(i, context) for i in indices]
    lanes = max((i.lanes for i in indices), default=1)

    def check(state: LaunchState) -> Array | None:
        inside: Any = True
        for closure, extent in unproven:
            i = closure(state)
            within = bool(0 <= i < extent) if is_uniform(i) else np.greater_equal(i, 0) & np.less(i, extent)
            if within is not True and (within is False or np.count_nonzero(within) < within.size):
                inside = inside & within
        if inside is True:
            return None
        shape = (state.threads,) if lanes == 1 else (lanes, state.threads)
        inside = spread_to(np.asarray(inside), shape)
        active = state.running(shape)
        wrong = ~inside if active is None else ~inside & active
        if np.count_nonzero(wrong):
            at = np.unravel_index(int(wrong.argmax()), shape)
            given = ", ".join(str(np.broadcast_to(closure(state), shape)[at]) for closure in closures)
            lane = f" in lane {at[0]}" if lanes > 1 else ""
            what = f"{buffer.name}[{given}]{lane} is out of bounds {list(buffer.shape)}"
            raise context.fault(what, state, int(at[-1]), buffer.name)
        return np.asarray(inside)

    return check


def shared_flat(
    indices: tuple[Expr, ...], memory: SharedMemory, context: LaunchContext, compile_: CompileExpr
) -> LaunchClosure:
    """Return a closure that gives the offsets of an access to shared memory, in the block of each thread."""
    address = address_of(indices, memory.buffer, context, compile_)
    swizzle = None if memory.buffer.layout is None else memory.buffer.layout.swizzle
    first = context.slot()
    context.prologue.append((first, lambda state: state.block * memory.span))
    if swizzle is None:
        return lambda state: state.env[first] + address.flat(state)
    mask, base, shift = (1 << swizzle.bits) - 1, swizzle.base, swizzle.base + swizzle.shift

    def swizzled(state: LaunchState) -> Any:
        linear = address.flat(state)
        return state.env[first] + (linear ^ (((linear >> shift) & mask) << base))

    return swizzled


def checked_flat(
    indices: tuple[Expr, ...], memory: CheckedMemory, context: LaunchContext, compile_: CompileExpr
) -> LaunchClosure:
    """Return a closure that gives the element numbers of an access to global memory, or the offsets of one to shared
    memory."""
    if isinstance(memory, SharedMemory):
        return shared_flat(indices, memory, context, compile_)
    return address_of(indices, memory.buffer, context, compile_).flat
