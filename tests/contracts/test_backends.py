"""What every backend must do: compile any final kernel to what the interpreter computes, the same bytes each time."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.codegen.backends import BACKENDS, backend_for
from tilewright.core.dtypes import DType
from tilewright.core.errors import CompileError, UnsupportedTarget
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.expr import Load, Var
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import For, Kernel, Launch, LoopKind, Store, walk_statements
from tilewright.runtime.device import Device
from tilewright.runtime.devices import DEVICES, host_target, open_device
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.tests.codegen.cuda.launches import LAUNCHES, launched
from tilewright.tests.codegen.kernels import KERNELS, matmul
from tilewright.tests.random_expressions import random_workload

Array = NDArray[Any]
KINDS = [
    pytest.param(kind, marks=pytest.mark.cuda) if kind == "cuda" else kind
    for kind in sorted(set(BACKENDS) & set(DEVICES))
]
TARGETS = {"llvm": host_target("llvm"), "cuda": Target("cuda", "sm_90a", (), 132, 16)}
TARGETS["amdgpu"] = Target("amdgpu", "gfx942", (), 304, 16)
"""What each backend compiles for where no device is needed."""
TOO_LARGE = {"cuda": ("large_locals",)}
"""Kernels that a kind of device has no room for: a thread of a graphics processor has 512 KiB of its own."""


@cache
def device(kind: str) -> Device:
    return open_device(kind)


def fitted(kernel: Kernel, kind: str) -> Kernel:
    """``kernel`` as the backend of ``kind`` wants it: loops as one launch of one thread on graphics processors."""
    return (
        launched(kernel)
        if kind != "llvm" and not any(isinstance(s, Launch) for s in walk_statements(kernel.body))
        else kernel
    )


def arrays(kernel: Kernel) -> dict[str, Array]:
    """Inputs that reach the odd values of every dtype."""
    generator = stream(3, "backends", kernel.name)
    return {b.name: _array(generator, b.shape, b.dtype) for b in kernel.inputs}


def _array(generator: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    size = int(np.prod(shape))
    if dtype.is_float:
        values = generator.normal(0, 2, size)
        values[: min(size, 8)] = [0.0, 1.0, -1.0, 300.7, -300.7, 127.5, -0.4, 3.5][: min(size, 8)]
        return values.astype(dtype.numpy).reshape(shape)
    if dtype.is_bool:
        return generator.integers(0, 2, shape).astype(bool)
    low = 0 if dtype.kind == "uint" else -1000 if dtype.bits > 8 else -128
    integers = generator.integers(low, min(1000, (1 << dtype.bits) + low), size, dtype=np.int64)
    return integers.astype(dtype.numpy).reshape(shape)


def compiled(kernel: Kernel, on: Device, inputs: Mapping[str, Array]) -> dict[str, Array]:
    target = on.info.target
    kernel = fitted(kernel, target.kind)
    backend = backend_for(target)
    passes = backend.passes(kernel)
    final = passes[-1][1] if passes else kernel
    loaded = on.load(binary := backend.compile(backend.emit(final, target), target))
    memories = {p.name: on.allocate(p.bytes) for p in binary.parameters}
    for p in binary.parameters:
        data = inputs[p.name] if p.role == "input" else np.full(p.bytes, 0xA5, np.uint8)
        memories[p.name].write(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
    loaded.launch([memories[p.name] for p in binary.parameters])
    outputs = [p for p in binary.parameters if p.role == "output"]
    return {p.name: memories[p.name].read().view(p.dtype.numpy).reshape(p.shape) for p in outputs}


def assert_same(got: Array, want: Array) -> None:
    """Integers and bools exactly; floats to a few units in the last place of their dtype."""
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    unit = {2: 2.0**-8 if "bfloat" in want.dtype.name else 2.0**-10, 4: 2.0**-21, 8: 2.0**-49}[want.dtype.itemsize]
    scale = 8 * unit if want.dtype.itemsize > 2 else unit / 8
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=2 * unit, atol=scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_compiled_kernel_does_what_the_interpreter_does(kind: str, name: str) -> None:
    kernel = KERNELS[name]
    if name in TOO_LARGE.get(kind, ()):
        pytest.skip(f"{name} needs more memory than a thread of a {kind} device has")
    inputs = arrays(kernel)
    want = interpret(kernel, inputs)
    got = compiled(kernel, device(kind), inputs)
    assert set(got) == set(want)
    for output in want:
        assert_same(got[output], want[output])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_the_plain_nest_of_a_random_expression_agrees_with_its_reference(kind: str, seed: int) -> None:
    workload = random_workload(seed)
    kernel, inputs = loop_nest(workload), random_inputs(workload, seed)
    got, want, bounds = compiled(kernel, device(kind), inputs), reference(workload, inputs), tolerance(workload)
    for name, (absolute, relative) in bounds.items():
        result, wanted = got[name].astype(want[name].dtype), want[name]
        np.testing.assert_allclose(result, wanted, rtol=relative, atol=absolute, err_msg=f"seed {seed}: {name}")


@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinities_pass_through(kind: str) -> None:
    kernel = KERNELS["binary_float32_8"]
    inputs = arrays(kernel)
    inputs["A"][:6] = np.array([np.nan, 1.0, np.inf, -np.inf, -np.inf, 5.0], np.float32)
    inputs["B"][:6] = np.array([1.0, np.nan, 1.0, np.inf, 0.0, -np.inf], np.float32)
    got, want = compiled(kernel, device(kind), inputs), interpret(kernel, inputs)
    for output in want:
        np.testing.assert_allclose(got[output][:6], want[output][:6], rtol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_compiled_launch_does_what_the_interpreter_does(name: str) -> None:
    kernel = LAUNCHES[name]
    inputs = arrays(kernel)
    got, want = compiled(kernel, device("cuda"), inputs), interpret(kernel, inputs)
    assert set(got) == set(want)
    for output in want:
        assert_same(got[output], want[output])


@pytest.mark.parametrize("kind", BACKENDS)
def test_equal_kernels_give_equal_bytes(kind: str) -> None:
    target, backend = TARGETS[kind], BACKENDS[kind]
    kernel = fitted(matmul(6, 32, 8, 16), kind)
    first, second = (backend.compile(backend.emit(kernel, target), target) for _ in range(2))
    assert first.code == second.code
    assert first.toolchain == backend.toolchain(target)
    assert [p.role for p in first.parameters] == ["input", "input", "output"]


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_loop_that_the_passes_left_behind_is_refused(kind: str) -> None:
    done = matmul(2, 8, 2, 8)
    result = done.outputs[0]
    body = Store(result, (Var("i"), Var("j")), Load(result, (Var("i"), Var("j"))))
    left = For("i", 2, LoopKind.SERIAL, For("j", 8, LoopKind.VECTORIZED, body))
    with pytest.raises(CompileError, match="j is still vectorized"):
        BACKENDS[kind].emit(fitted(Kernel("left", (), (result,), (), left), kind), TARGETS[kind])


@pytest.mark.parametrize("kind", BACKENDS)
def test_source_and_assembly_can_be_read(kind: str) -> None:
    target, backend = TARGETS[kind], BACKENDS[kind]
    source = backend.emit(fitted(matmul(4, 32, 8, 16), kind), target)
    assert source.entry in source.text
    assert source.entry in backend.assembly(source, target)
    artifacts = backend.artifacts(source, target)
    assert artifacts.layers[-1].text == backend.assembly(source, target)
    assert sum(artifacts.instructions.values()) > 10


def test_a_kind_without_a_backend_is_named() -> None:
    with pytest.raises(UnsupportedTarget, match=r"'abacus'; known: .*llvm"):
        backend_for(Target("abacus", "wood"))
