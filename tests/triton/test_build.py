"""Triton compiles kernels in a restricted child: to a cubin with what our runtime needs to launch it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tilewright.codegen.backend import CompiledKernel
from tilewright.codegen.lowering import build
from tilewright.core.dtypes import uint8
from tilewright.core.errors import CompileError
from tilewright.core.fleet import Unit
from tilewright.core.target import DeviceInfo, Profile, Target
from tilewright.core.trial import Failed, Reason
from tilewright.schedule.gpu.triton import CUDA_TRITON
from tilewright.te.json import workload_from_json
from tilewright.te.triton import TritonWorkload
from tilewright.tests.triton.kernels import ADD, HELPED, PRELUDE, add_workload
from tilewright.workers.builder_supervisor import BuilderSupervisor
from tilewright.workers.child_supervisor import WorkerSpec
from tilewright.workers.oracle_builder import OracleBuilder, OracleFailed
from tilewright.workers.settings import ExecutorSettings

triton: Any = pytest.importorskip("triton")
VERSION = triton.__version__
SM90A = Target("cuda", "sm_90a", (), 132, 16)
SPEC = WorkerSpec(
    SM90A, Profile(), 0, ExecutorSettings(accept_code=True), Unit("unit", DeviceInfo("Example GPU", SM90A), "host")
)


def workload(**changes: Any) -> TritonWorkload:
    found = workload_from_json(add_workload(version=VERSION) | changes)
    assert isinstance(found, TritonWorkload)
    return found


@pytest.fixture(scope="module")
def builder() -> Iterator[BuilderSupervisor]:
    opened = BuilderSupervisor(SPEC)
    yield opened
    opened.close()


def built(builder: BuilderSupervisor, number: int = 0, **changes: Any) -> CompiledKernel | Failed:
    given = add_workload(version=VERSION) | changes
    schedule = CUDA_TRITON.space(workload(**changes), SM90A).schedule(number)
    return builder.build(given, schedule.to_json()).result


def test_a_restricted_child_builds_what_a_runner_launches(builder: BuilderSupervisor) -> None:
    binary = built(builder, 1)
    assert isinstance(binary, CompiledKernel), binary
    (launch,) = binary.launches
    assert binary.code.startswith(b"\x7fELF") and launch.function == "add"
    assert launch.blocks == (8, 1, 1) and launch.threads == 128
    assert [p.role for p in binary.parameters] == ["input", "input", "output"]
    assert launch.numbers[0] == (3, 4096) and len(launch.numbers) == 3  # n, and two buffers that it does not need
    assert built(builder, 1) == binary  # whichever child built it


def test_helpers_constants_and_numbers_that_are_compiled_in(builder: BuilderSupervisor) -> None:
    arguments = [
        {"pointer": "x_ptr", "dtype": "float16", "elements": 1, "access": "read"},
        {"pointer": "out_ptr", "dtype": "float32", "elements": 1, "access": "write"},
        {"scalar": "n", "type": "i32", "value": 1},
    ]
    more: dict[str, Any] = {"source": HELPED, "name": "double", "constants": {"TYPE": "tl.float32"}}
    binary = built(builder, arguments=arguments, **more)
    assert isinstance(binary, CompiledKernel), binary
    assert [place for place, _ in binary.launches[0].numbers] == [2, 3]


def test_descriptors_made_in_the_kernel_get_their_scratch(builder: BuilderSupervisor) -> None:
    source = (
        PRELUDE
        + """@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, shape=[64, 64], strides=[64, 1], block_shape=[64, 64])
    y = tl.make_tensor_descriptor(out_ptr, shape=[64, 64], strides=[64, 1], block_shape=[64, 64])
    y.store([0, 0], x.load([0, 0]))
"""
    )
    binary = built(builder, source=source)
    assert isinstance(binary, CompiledKernel), binary
    scratch = binary.parameters[-1]
    assert scratch.role == "workspace" and scratch.dtype == uint8 and scratch.bytes > 0
    assert binary.launches[0].arguments == (0, 1, 2, 3)
    assert [place for place, _ in binary.launches[0].numbers] == [3, 5]


def test_failures_are_typed(builder: BuilderSupervisor) -> None:
    wrong = built(builder, source=ADD.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK - 1)"))
    assert isinstance(wrong, Failed) and wrong.reason is Reason.COMPILE_ERROR and "power of 2" in wrong.detail
    old = built(builder, version="2.0.0")
    assert isinstance(old, Failed) and "Triton 2.0.0" in old.detail and VERSION in old.detail
    staged = (
        PRELUDE
        + """@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    place = i[:, None] * BLOCK + i[None, :]
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, n, BLOCK):
        total = tl.dot(tl.load(x_ptr + place + k), tl.load(y_ptr + place + k), total)
    tl.store(out_ptr + place, total)
"""
    )
    large = built(builder, source=staged, configurations=[{"BLOCK": 64, "num_stages": 16}])
    assert isinstance(large, Failed) and large.reason is Reason.RESOURCES and "shared memory" in large.detail


def test_a_kernel_that_asks_for_files_gets_none(builder: BuilderSupervisor) -> None:
    """What the source may hold is checked before; what Triton runs of it while it compiles is in the sandbox."""
    source = ADD.replace("place =", "open('/etc/hostname', 'w')\n    place =")
    refused = built(builder, source=source)
    assert isinstance(refused, Failed) and refused.reason is Reason.COMPILE_ERROR


def test_the_oracle_is_the_first_that_builds() -> None:
    oracles = OracleBuilder(SPEC)
    try:
        given = add_workload(version=VERSION, configurations=[{"BLOCK": 100}, {"BLOCK": 128}, {"BLOCK": 256}])
        found = oracles.of(given)
        assert found is not None and found.configuration == 1
        with pytest.raises(OracleFailed, match="power of 2"):
            oracles.of(add_workload(version=VERSION, configurations=[{"BLOCK": 100}]))
        assert oracles.of({"inputs": [], "stages": [], "outputs": []}) is None
    finally:
        oracles.close()


def test_another_version_than_the_installed_one_is_refused() -> None:
    with pytest.raises(CompileError, match=r"Triton 1\.0"):
        build(workload(version="1.0"), SM90A, CUDA_TRITON.space(workload(), SM90A).schedule(0))
