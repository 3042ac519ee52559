"""A kernel in the user's process takes and returns NumPy arrays; errors say what was wrong with them."""

import threading

import numpy as np
import pytest

from tilewright.codegen.lowering import build_kernel
from tilewright.core.dtypes import float32
from tilewright.core.errors import IllegalSchedule, InvalidParameter, UnsupportedTarget
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load, Var
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import Module, load_module
from tilewright.schedule.cpu.gemm.fma import CPU_GEMM
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Axis, Stage, Workload

SHAPE = (5, 7)
NO_SCHEDULE = Schedule("plain", 1, ())


def workload() -> Workload:
    """Return ``T = A + B; C = T * 2`` with T in the workspace, and a second output ``D = T - 1``."""
    a, b, t, c, d = (Buffer(name, SHAPE, float32) for name in "ABTCD")

    def stage(tensor: Buffer, i: str, j: str, *loads: Buffer) -> Stage:
        values = [Load(x, (Var(i), Var(j))) for x in loads]
        body = {"T": lambda: values[0] + values[1], "C": lambda: values[0] * 2.0, "D": lambda: values[0] - 1.0}
        return Stage(tensor, (Axis(i, SHAPE[0]), Axis(j, SHAPE[1])), body[tensor.name]())

    stages = (stage(t, "i", "j", a, b), stage(c, "k", "l", t), stage(d, "m", "n", t))
    return Workload((a, b), stages, ("C", "D"))


@pytest.fixture(scope="module")
def module() -> Module:
    device = CpuDevice()
    kernel = device.load(build_kernel(loop_nest(workload()), device.target))
    return Module(workload(), NO_SCHEDULE, kernel)


def arrays(seed: int = 0) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], ...]:
    generator = np.random.Generator(np.random.PCG64(seed))
    return tuple(generator.uniform(-1, 1, SHAPE).astype(np.float32) for _ in range(2))


def test_outputs_come_in_order(module: Module) -> None:
    a, b = arrays()
    c, d = module(a, b)
    np.testing.assert_allclose(c, (a + b) * 2, rtol=1e-6)
    np.testing.assert_allclose(d, a + b - 1, rtol=1e-6, atol=1e-7)


def test_arrays_that_are_not_contiguous_are_copied(module: Module) -> None:
    a, b = arrays()
    wide = np.zeros((SHAPE[0], 2 * SHAPE[1]), np.float32)
    wide[:, ::2] = a
    c, _ = module(wide[:, ::2], np.asfortranarray(b))
    np.testing.assert_allclose(c, (a + b) * 2, rtol=1e-6)


def test_results_can_be_written_in_place(module: Module) -> None:
    a, b = arrays()
    out = [np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)]
    c, d = module(a, b, out=out)
    assert c is out[0] and d is out[1]
    np.testing.assert_allclose(out[0], (a + b) * 2, rtol=1e-6)


def test_wrong_arrays_are_explained(module: Module) -> None:
    a, b = arrays()
    with pytest.raises(InvalidParameter, match="1 arrays given, 2 needed: A, B"):
        module(a)
    with pytest.raises(InvalidParameter, match=r"B has shape \[7, 5\], needed: \[5, 7\]") as caught:
        module(a, b.T)
    assert caught.value.field == "B"
    with pytest.raises(InvalidParameter, match="A is float64, needed: float32"):
        module(a.astype(np.float64), b)
    with pytest.raises(InvalidParameter, match="A is a list, not a NumPy array"):
        module(a.tolist(), b)
    with pytest.raises(InvalidParameter, match="1 out arrays given, 2 needed: C, D"):
        module(a, b, out=[np.zeros(SHAPE, np.float32)])
    with pytest.raises(InvalidParameter, match="out is of type ndarray; allowed: a list of arrays: C, D"):
        module(a, b, out=np.zeros(SHAPE, np.float32))  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="out C must be contiguous"):
        module(a, b, out=[np.zeros((7, 5), np.float32).T, np.zeros(SHAPE, np.float32)])
    with pytest.raises(InvalidParameter, match="out C overlaps input A"):
        module(a, b, out=[a, np.zeros(SHAPE, np.float32)])


def test_out_arrays_must_not_overlap_each_other(module: Module) -> None:
    a, b = arrays()
    same = np.zeros(SHAPE, np.float32)
    with pytest.raises(InvalidParameter, match="out D overlaps out C"):
        module(a, b, out=[same, same])


@pytest.fixture(scope="module")
def layer() -> Module:
    """Return a linear layer on vector registers, whose weights are copied before the first call."""
    work = OPERATORS["linear"].workload({"rows": 33, "inputs": 131, "outputs": 97, "constant_weights": True})
    target = host_target("llvm")
    space = CPU_GEMM.space(work, target)
    module = load_module(work, space.schedule(len(space) // 2), target)
    assert isinstance(module, Module)
    return module


def operands(seed: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    generator = np.random.Generator(np.random.PCG64(seed))
    return [generator.uniform(-1, 1, shape).astype(np.float32) for shape in ((33, 131), (97, 131), (97,))]


def test_constants_are_bound_once_for_many_calls(layer: Module) -> None:
    (x, w, b), (x2, w2, _) = operands(0), operands(1)
    one, other = layer.bind(W=w), layer.bind(W=w2)
    for given in (x, x2):
        np.testing.assert_allclose(one(given, b)[0], given @ w.T + b, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(other(given, b)[0], given @ w2.T + b, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(layer(given, w2, b)[0], given @ w2.T + b, rtol=1e-4, atol=1e-4)
    before = one(x, b)[0]
    w[:] = 0  # This breaks the promise, and shows that the copy is read.
    np.testing.assert_array_equal(one(x, b)[0], before)


def test_wrong_constants_are_explained(layer: Module, module: Module) -> None:
    x, w, b = operands(0)
    with pytest.raises(InvalidParameter, match="constants given: B, W; needed: W"):
        layer.bind(W=w, B=b)
    with pytest.raises(InvalidParameter, match="constants given: A; needed: none"):
        module.bind(A=x)
    with pytest.raises(InvalidParameter, match=r"W has shape \[131, 97\], needed: \[97, 131\]"):
        layer.bind(W=w.T)
    with pytest.raises(InvalidParameter, match="3 arrays given, 2 needed: X, B"):
        layer.bind(W=w)(x, w, b)
    with pytest.raises(InvalidParameter, match="out Y overlaps constant W"):
        layer.bind(W=w)(x, b, out=[w.reshape(-1)[: 33 * 97].reshape(33, 97)])


def test_threads_may_call_at_once(module: Module) -> None:
    failures: list[int] = []

    def call(seed: int) -> None:
        a, b = arrays(seed)
        for _ in range(50):
            c, _ = module(a, b)
            if not np.allclose(c, (a + b) * 2, rtol=1e-6):
                failures.append(seed)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


def test_loading_names_what_is_wrong() -> None:
    with pytest.raises(IllegalSchedule, match="no sketch 'plain'"):
        load_module(workload(), NO_SCHEDULE)
    with pytest.raises(UnsupportedTarget, match="no modules for abacus x"):
        load_module(workload(), NO_SCHEDULE, Target("abacus", "x"))
