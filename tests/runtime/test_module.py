"""A kernel in the user's process: NumPy arrays in and out, and errors that say what was wrong with them."""

import threading

import numpy as np
import pytest

from tilewright.codegen.road import build_kernel
from tilewright.core.dtypes import float32
from tilewright.core.errors import IllegalSchedule, InvalidParameter, UnsupportedTarget
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load, Var
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.module import Module, load_module
from tilewright.schedule.nest import loop_nest
from tilewright.te.workload import Axis, Stage, Workload

SHAPE = (5, 7)
NO_SCHEDULE = Schedule("plain", 1, ())


def workload() -> Workload:
    """``T = A + B; C = T * 2`` with T in the workspace, and a second output ``D = T - 1``."""
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
    with pytest.raises(InvalidParameter, match="out C must be contiguous"):
        module(a, b, out=[np.zeros((7, 5), np.float32).T, np.zeros(SHAPE, np.float32)])
    with pytest.raises(InvalidParameter, match="out C overlaps input A"):
        module(a, b, out=[a, np.zeros(SHAPE, np.float32)])


def test_out_arrays_must_not_overlap_each_other(module: Module) -> None:
    a, b = arrays()
    same = np.zeros(SHAPE, np.float32)
    with pytest.raises(InvalidParameter, match="out D overlaps out C"):
        module(a, b, out=[same, same])


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
