"""A user's own Triton kernel as a workload: source text, arguments, constants, grid, and configurations to choose from.

It has no tensor expression, so that its ``stages`` are empty. Its pointers are the tensors: those that the kernel only
reads are inputs, those that it writes are outputs. Whether a configuration is right is decided by another one: what the
first configuration that compiles makes of the same data.

Triton is imported by nothing here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import DType
from ..core.errors import InvalidWorkload
from ..core.schedule import KnobValue
from ..ir.buffer import Buffer
from .grid import grid_value
from .workload import Workload

Value = int | float | bool | str | None
"""What a constant may be. A text such as ``tl.float32`` is that dtype of Triton."""

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""The values of a configuration that are for Triton's compiler; all others are constants of the kernel."""
MOST_BLOCKS = ((1 << 31) - 1, 65_535, 65_535)
"""How many blocks a grid may have along x, y and z (CUDA C++ Programming Guide, "Compute Capabilities")."""


class PointerAccess(StrEnum):
    """What a kernel does with the memory of a pointer: it only reads it, or writes it and perhaps reads it."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class TritonPointer:
    """A pointer argument to ``elements`` elements. What lies there at first is drawn at random, or 0 with ``zero``;
    whole numbers of 32 bits and more are 0 unless ``low`` and ``high`` give their range, both included. ``aligned``:
    whether its address is a multiple of 16 bytes, which Triton's code depends on."""

    name: str
    dtype: DType
    elements: int
    access: PointerAccess
    zero: bool = False
    low: int | None = None
    high: int | None = None
    aligned: bool = True


@dataclass(frozen=True, slots=True)
class TritonScalar:
    """A number argument of Triton's type ``type``. ``in_key``: whether another value is another workload; otherwise
    only what Triton's code depends on is (whether it is 1, or a multiple of 16). ``specialised``: whether it depends
    on that."""

    name: str
    type: str
    value: int | float
    in_key: bool = True
    specialised: bool = True

    @property
    def is_one(self) -> bool:
        """Whether Triton compiles the number 1 into the code."""
        return self.specialised and self.type[0] in "iu" and self.type != "u1" and self.value == 1

    @property
    def is_divisible(self) -> bool:
        """Whether Triton's code knows that the number is a multiple of 16."""
        return self.specialised and self.type[0] in "iu" and self.type != "u1" and self.value % 16 == 0


@dataclass(frozen=True, slots=True)
class TritonConfigurations:
    """The configurations to choose from. ``values[n]`` are the values that ``names[n]`` has in any of them. ``rows``
    has the positions of their values, one row for each configuration; None: every combination is one."""

    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    rows: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return prod(len(v) for v in self.values) if self.rows is None else len(self.rows)

    def codes(self) -> NDArray[np.int16]:
        """int16[n, names]: the positions of the values of each configuration."""
        if self.rows is not None:
            return np.array(self.rows, dtype=np.int16).reshape(len(self.rows), len(self.names))
        axes = [np.arange(len(v), dtype=np.int16) for v in self.values]
        return np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)

    def knob_values(self, position: int) -> tuple[KnobValue, ...]:
        """Return the values of a name as knobs have them: whole numbers, or texts where any of them is something
        else."""
        values = self.values[position]
        if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            return tuple(int(v) for v in values if v is not None)
        return tuple(v if isinstance(v, str) else repr(v) for v in values)

    def row_of(self, knobs: Mapping[str, KnobValue]) -> int | None:
        """Return the configuration with these knobs; None where there is none."""
        if set(knobs) != set(self.names):
            return None
        try:
            code = tuple(self.knob_values(n).index(knobs[name]) for n, name in enumerate(self.names))
        except ValueError:
            return None
        if self.rows is not None:
            return self.rows.index(code) if code in self.rows else None
        return int(np.ravel_multi_index(code, [len(v) for v in self.values])) if code else 0

    def row(self, number: int) -> dict[str, Value]:
        """Return the values of a configuration, by name."""
        code = self.codes()[number]
        return {name: self.values[n][int(code[n])] for n, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """What a user has written and calls.

    version: The version of Triton that compiles it.
    source: A module's text: imports of Triton, constants, helper functions and the kernel, all under ``triton.jit``.
    name: Which function of the module is the kernel.
    arguments: Its arguments that are no constants, in order.
    constants: Its ``tl.constexpr`` arguments that no configuration has, by name.
    grid: One to three expressions, one of them for each dimension (see ``te.grid``); empty with ``grids``.
    grids: Instead of expressions, how many blocks there are along x, y and z in each configuration of a list.
    """

    version: str
    source: str
    name: str
    arguments: tuple[TritonPointer | TritonScalar, ...]
    constants: tuple[tuple[str, Value], ...]
    configurations: TritonConfigurations
    grid: tuple[str, ...] = ()
    grids: tuple[tuple[int, int, int], ...] = ()

    @property
    def pointers(self) -> tuple[TritonPointer, ...]:
        return tuple(a for a in self.arguments if isinstance(a, TritonPointer))

    def blocks(self, number: int) -> tuple[int, int, int]:
        """Return how many blocks there are along x, y and z in a configuration. Raises InvalidWorkload."""
        if self.grids:
            return self.grids[number]
        scalars = {a.name: a.value for a in self.arguments if isinstance(a, TritonScalar)}
        names = {**scalars, **dict(self.constants), **self.configurations.row(number)}
        return checked_blocks([grid_value(text, names, f"/grid/{n}") for n, text in enumerate(self.grid)], "/grid")


def checked_blocks(given: Sequence[int], field: str) -> tuple[int, int, int]:
    """Return a grid with all three dimensions. Raises InvalidWorkload where it has too few or too many blocks."""
    x, y, z = (*given, *(1 for _ in range(3 - len(given))))
    for count, most in zip((x, y, z), MOST_BLOCKS, strict=True):
        if not 1 <= count <= most:
            raise InvalidWorkload(f"a grid of {[x, y, z]}; allowed: 1 to {list(MOST_BLOCKS)}", field=field)
    return x, y, z


@dataclass(frozen=True, slots=True)
class TritonWorkload(Workload):
    """The workload of a Triton kernel. ``triton_workload`` makes it, so that its tensors are those of the kernel."""

    kernel: TritonKernel | None = None

    @property
    def triton(self) -> TritonKernel:
        """The kernel."""
        assert self.kernel is not None
        return self.kernel

    @property
    def output_buffers(self) -> tuple[Buffer, ...]:
        return tuple(pointer_buffer(p) for p in self.triton.pointers if p.access is not PointerAccess.READ)


def triton_workload(kernel: TritonKernel) -> TritonWorkload:
    """Return the workload of a kernel that was checked (``te.triton_json``)."""
    inputs = tuple(pointer_buffer(p) for p in kernel.pointers if p.access is PointerAccess.READ)
    outputs = tuple(p.name for p in kernel.pointers if p.access is not PointerAccess.READ)
    return TritonWorkload(inputs, (), outputs, kernel=kernel)


def pointer_buffer(pointer: TritonPointer) -> Buffer:
    """Return the memory of a pointer as a tensor with one dimension."""
    return Buffer(pointer.name, (pointer.elements,), pointer.dtype)


def triton_text(kernel: TritonKernel) -> str:
    """Return a kernel as lines for people, ending in a line break."""
    lines = [f"Triton {kernel.version} kernel {kernel.name}, {len(kernel.configurations)} configurations"]
    for argument in kernel.arguments:
        if isinstance(argument, TritonPointer):
            lines.append(f"{argument.name}: {argument.dtype}[{argument.elements}]    # {argument.access}")
        else:
            lines.append(f"{argument.name}: {argument.type} = {argument.value}")
    lines += [f"{name} = {value!r}" for name, value in kernel.constants]
    if kernel.grid:
        lines.append(f"grid: {', '.join(kernel.grid)}")
    return "\n".join(lines) + "\n\n" + kernel.source.strip() + "\n"
