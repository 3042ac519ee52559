"""What multiplies one register tile of a blocked product: the sketches of this folder differ in it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....ir.stmt import Kernel
from ...problems.gemm import Gemm
from ...space.columns import Bools, Floats, Ints
from ..peaks import CpuPeaks
from .kernel import CpuGemmSetting

LOAD_COST = 1 / 4
"""What a load costs beside multiply-adds, in multiply-adds. Loads run on ports of their own. Register tiles in the
first-level cache of an Intel Xeon reached 0.90 to 0.98 of the peak, with 0.63 to 0.44 loads for each."""

IN_FLIGHT = 10
"""Multiply-adds that a narrow panel of a task must have under way to keep the units busy: each of two units begins one
in a cycle, which takes four cycles, and two more were fitted. Those of 4 to 16 accumulators took the same on an AMD
EPYC. On an Intel Xeon 8 took 1.4 times as long as 24, for each multiply-add."""

SPILL_COST = 2
"""How much longer a tile takes that needs every vector register: LLVM then keeps an accumulator on the stack, and each
multiply-add waits for a store. Tiles of 4 x 3 and 14 x 1 vectors of AVX2 took 1.7 to 2.3 times as long for it."""


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """The register tiles that one kind of instruction multiplies, and how it wants its operands.

    A vector has ``lanes`` accumulators. ``mr`` and ``vectors`` are sizes of register tiles to try. ``registers`` hold
    accumulators and operands, each with ``register_rows`` rows. ``k_group`` neighbours along ``k`` are what one
    instruction takes from packed memory, where an element has ``packed_bytes``. ``kc`` is a multiple of ``k_step``.
    ``a_in_place`` and ``b_in_place`` say whether an operand can be read where it lies, ``a_whole`` and ``b_whole``
    whether it can be packed before the tasks begin, and ``sums_in_output`` whether accumulators may wait in an output
    between two blocks of ``k``. With ``memory_knobs`` tiles are so fast that both operands come from the second-level
    cache and memory takes a good part of the time, so that other loop orders and other stores are worth trying.
    ``flops`` gives the operations a second at best, and ``lower`` writes the kernel.
    """

    lanes: int
    mr: tuple[int, ...]
    vectors: tuple[int, ...]
    registers: int
    k_step: int
    packed_bytes: int
    a_in_place: bool
    flops: Callable[[CpuPeaks], float]
    lower: Callable[[Gemm, str, CpuGemmSetting], Kernel]
    register_rows: int = 1
    k_group: int = 1
    b_in_place: bool = False
    a_whole: bool = True
    b_whole: bool = True
    sums_in_output: bool = True
    memory_knobs: bool = False

    @property
    def busy(self) -> int:
        """How many registers of accumulators keep the units busy."""
        return self.registers // 2

    def accumulators(self, mr: Ints, vectors: Ints) -> Ints:
        """Return how many registers the accumulators of a register tile take, int64[n]."""
        return mr // self.register_rows * vectors

    def loads_per_operation(self, mr: Ints, vectors: Ints) -> Floats:
        """Return how many registers are loaded for each instruction that multiplies, float64[n]."""
        blocks = mr // self.register_rows
        return (blocks + vectors) / (blocks * vectors)

    def fits(self, mr: Ints, vectors: Ints) -> Bools:
        """Return whether the registers hold the accumulators, a row of B and what is held of A, bool[n].

        One register is enough for A on vectors, where each element is broadcast in turn. A tile holds all of its rows.
        """
        return self._needed(mr, vectors) <= self.registers

    def _needed(self, mr: Ints, vectors: Ints) -> Ints:
        """Return how many registers all of a register tile takes, int64[n]."""
        blocks = mr // self.register_rows
        return (blocks + 1) * vectors + (blocks if self.register_rows > 1 else 1)

    def slowdown(self, mr: Ints, vectors: Ints, busy: int | None = None) -> Floats:
        """Return how much longer a register tile takes than its multiply-adds at the peak rate, float64[n].

        With fewer accumulators than ``busy``, each multiply-add waits for the one before it.
        """
        waiting = np.maximum((self.busy if busy is None else busy) / self.accumulators(mr, vectors), 1)
        spilled = (self._needed(mr, vectors) >= self.registers) & (self.register_rows == 1)
        slower = waiting * (1 + LOAD_COST * self.loads_per_operation(mr, vectors))
        return slower * np.where(spilled, SPILL_COST, 1)
