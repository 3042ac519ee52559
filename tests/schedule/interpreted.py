"""Kernels of tile programs compared with the reference, on the interpreter."""

import numpy as np

from tilewright.codegen.lowering import finish
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Kernel
from tilewright.ir.verify import verify
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

HOPPER = Target("cuda", "sm_90a", threads=132, vector_bytes=16)


def assert_computes(kernel: Kernel, workload: Workload, seed: int = 0) -> None:
    """The kernel is legal before and after the passes, has no race, and gives the workload's outputs."""
    verify(kernel)
    final = finish(kernel, HOPPER)
    verify(final)
    inputs = random_inputs(workload, seed)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    for name, result in interpret(final, inputs).items():
        absolute, relative = limits[name]
        np.testing.assert_allclose(
            np.asarray(result, np.float64), np.asarray(wanted[name], np.float64), rtol=relative, atol=absolute
        )
