"""Does a kernel compute its workload? Asked of the interpreter and the reference."""

import numpy as np

from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Kernel
from tilewright.ir.verify import verify
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload


def assert_computes(kernel: Kernel, workload: Workload, seed: int = 0) -> None:
    """Fails unless ``kernel`` is legal, faults nowhere, and agrees with the reference within the tolerance."""
    verify(kernel)
    inputs = random_inputs(workload, seed)
    wanted = reference(workload, inputs)
    limits = tolerance(workload)
    for name, result in interpret(kernel, inputs).items():
        absolute, relative = limits[name]
        given = np.asarray(result, dtype=np.float64)
        np.testing.assert_allclose(given, np.asarray(wanted[name], np.float64), rtol=relative, atol=absolute)
