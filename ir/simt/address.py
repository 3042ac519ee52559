"""Addresses of the interpreter of launches: which element an access touches, and whether it is one of its buffer's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bounds import interval_of, loop_range
from ..buffer import Buffer
from ..expr import Expr, Var
from ..linear_form import LANE, LinearForm, linear_form, sum_of
from ..memory import Array
from .memory import GlobalMemory, SharedMemory
from .scope import Code, Machine, Scope

Compile = Callable[[Expr, Scope], Code]
"""Turns an expression into code; given by ``values``, which in turn builds on this module."""

Watched = GlobalMemory | SharedMemory


def is_uniform(value: Any) -> bool:
    """Whether a value is one number for all threads."""
    return not isinstance(value, np.ndarray) or value.ndim == 0


@dataclass(frozen=True)
class Address:
    """Where an access goes: the element numbers are ``base + steps``, and in range for all who run (``check``).

    ``base`` gives an int, [threads] or [lanes, threads]; ``steps``, int64[lanes, 1], are those of ramps.
    """

    base: Code
    check: Callable[[Machine], Array | None]
    steps: Array | None

    def flat(self, m: Machine) -> Any:
        """The element numbers; those of threads that do not run are in range too."""
        inside = self.check(m)
        found = self.base(m) if self.steps is None else self.base(m) + self.steps
        return found if inside is None else np.where(inside, found, 0)


def address_of(indices: tuple[Expr, ...], buffer: Buffer, scope: Scope, compile_: Compile) -> Address:
    """The address of an access, by row-major number, or by the strides of the buffer's layout without its swizzle."""
    form = LinearForm({})
    for i, stride in zip(indices, buffer.strides, strict=True):
        form = form.plus(linear_form(i), stride)
    steps = None if form.lanes == 1 else np.arange(form.lanes, dtype=np.int64)[:, None] * form.stride
    base = sum_code(form.without((LANE,)), scope, compile_)
    return Address(base, _bounds_check(indices, buffer, scope, compile_), steps)


def sum_code(form: LinearForm, scope: Scope, compile_: Compile) -> Code:
    """A sum of index expressions: what launch variables decide worked out once, loop variables as plain numbers."""
    settled: dict[Expr, int] = {}
    loops: list[tuple[int, int]] = []
    others: list[tuple[Code, int]] = []
    constant = form.constant
    for atom, c in form.terms.items():
        if atom.lanes == 1 and scope.settled(atom):
            settled[atom] = c
        elif isinstance(atom, Var):
            loops.append((scope.slots[atom.name], c))
        else:
            others.append((compile_(atom, scope), c))
    thread_part = None
    if settled:
        thread_part = compile_(sum_of(settled.items(), constant), scope)
        constant = 0

    def add(m: Machine) -> Any:
        env, result = m.env, constant
        for slot, c in loops:
            result += env[slot] * c
        if thread_part is not None:
            result = thread_part(m) + result
        for code, c in others:
            result = result + code(m) * c
        return result

    if thread_part is not None and not loops and not others:
        return thread_part
    return add


def _bounds_check(
    indices: tuple[Expr, ...], buffer: Buffer, scope: Scope, compile_: Compile
) -> Callable[[Machine], Array | None]:
    """Code that raises where somebody who runs leaves the buffer; who is inside, None where all are."""
    open_ = [
        (compile_(i, scope), extent)
        for i, extent in zip(indices, buffer.shape, strict=True)
        if not interval_of(i, scope.ranges).within(loop_range(extent))
    ]
    if not open_:
        return lambda m: None
    codes = [compile_(i, scope) for i in indices]
    lanes = max((i.lanes for i in indices), default=1)

    def check(m: Machine) -> Array | None:
        inside: Any = True
        for code, extent in open_:
            i = code(m)
            inside = inside & np.greater_equal(i, 0) & np.less(i, extent)
        if np.all(inside):
            return None
        shape = (m.threads,) if lanes == 1 else (lanes, m.threads)
        inside = np.broadcast_to(np.asarray(inside), shape)
        active = m.running(shape)
        wrong = ~inside if active is None else ~inside & active
        if wrong.any():
            at = np.unravel_index(int(wrong.argmax()), shape)
            given = ", ".join(str(np.broadcast_to(code(m), shape)[at]) for code in codes)
            lane = f" in lane {at[0]}" if lanes > 1 else ""
            what = f"{buffer.name}[{given}]{lane} is out of bounds {list(buffer.shape)}"
            raise scope.fault(what, m, int(at[-1]), buffer.name)
        return np.asarray(inside)

    return check


def shared_flat(indices: tuple[Expr, ...], memory: SharedMemory, scope: Scope, compile_: Compile) -> Code:
    """The places of an access to shared memory, in this thread's block."""
    address = address_of(indices, memory.buffer, scope, compile_)
    swizzle = None if memory.buffer.layout is None else memory.buffer.layout.swizzle
    offset = scope.slot()
    scope.prologue.append((offset, lambda m: m.block * memory.span))
    if swizzle is None:
        return lambda m: m.env[offset] + address.flat(m)
    mask, base, shift = (1 << swizzle.bits) - 1, swizzle.base, swizzle.base + swizzle.shift

    def swizzled(m: Machine) -> Any:
        place = address.flat(m)
        return m.env[offset] + (place ^ (((place >> shift) & mask) << base))

    return swizzled


def watched_flat(indices: tuple[Expr, ...], memory: Watched, scope: Scope, compile_: Compile) -> Code:
    """The element numbers (places) of an access to global or shared memory."""
    if isinstance(memory, SharedMemory):
        return shared_flat(indices, memory, scope, compile_)
    return address_of(indices, memory.buffer, scope, compile_).flat
