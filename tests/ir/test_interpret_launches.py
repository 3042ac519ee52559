"""The interpreter of launches: right results, and every fault it promises to find."""

import numpy as np
import pytest

from tests.ir.launches import FAULTS, Build, data_of, expected
from tilewright.core.errors import InvalidKernel, KernelFault
from tilewright.ir.interpret import interpret
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.verify import verify

PLANTED = [(build, fault, message) for build, faults in FAULTS.items() for fault, message in faults.items()]


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("build", FAULTS, ids=name)
def test_right_kernels_give_right_results(build: Build) -> None:
    kernel = build("")
    verify(kernel, final=True)
    data = data_of(kernel)
    for variant in (kernel, simplify_kernel(kernel)):
        (result,) = interpret(variant, data).values()
        np.testing.assert_array_equal(result, expected(build, data))


@pytest.mark.parametrize(("build", "fault", "message"), PLANTED, ids=[f"{name(b)}: {f}" for b, f, _ in PLANTED])
def test_planted_faults_are_found(build: Build, fault: str, message: str) -> None:
    kernel = build(fault)
    with pytest.raises((KernelFault, InvalidKernel), match=message):
        interpret(kernel, data_of(kernel))
