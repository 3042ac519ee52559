"""No pass changes what a kernel computes. The interpreter runs kernels of random expressions after each pass."""

import numpy as np
import pytest

from tests.random_expressions import random_workload
from tilewright.codegen.passes.pipeline import LOOP_PASSES, run_passes
from tilewright.core.dtypes import float32
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import Load, index
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Allocate, For, Kernel, LoopKind, Stmt, Store, seq, walk_statements
from tilewright.ir.verify import verify
from tilewright.runtime.devices import host_target
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload


def _workload(case: str) -> Workload:
    name, _, number = case.partition(" ")
    return random_workload(int(number)) if name == "seed" else OPERATORS[name].workload(OPERATORS[name].examples[0])


@pytest.mark.parametrize("case", [*OPERATORS, *(f"seed {s}" for s in range(200, 224))])
def test_every_pass_keeps_the_result(case: str) -> None:
    workload, target = _workload(case), host_target("llvm")
    inputs = random_inputs(workload, 5)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    for name, sketch in SKETCHES.items():
        if not sketch.matches(workload, target):
            continue
        space = sketch.space(workload, target, limit=1000)
        kernel = sketch.lower(workload, target, space.schedule(int(stream(1, name, case).integers(len(space)))))
        before = None
        for pass_name, after in run_passes(kernel):
            if after == before:
                continue  # what a pass leaves alone has been compared
            before = after
            verify(after)
            for output, result in interpret(after, inputs).items():
                absolute, relative = limits[output]
                np.testing.assert_allclose(
                    np.asarray(result, np.float64),
                    np.asarray(wanted[output], np.float64),
                    rtol=relative,
                    atol=absolute,
                    err_msg=f"{output} after {pass_name}",
                )


def test_only_serial_and_parallel_loops_are_left() -> None:
    workload, target = OPERATORS["conv2d"].workload(OPERATORS["conv2d"].examples[0]), host_target("llvm")
    for sketch in (s for s in SKETCHES.values() if s.matches(workload, target)):
        space = sketch.space(workload, target, limit=20)
        for row in range(0, len(space), 5):
            last = run_passes(sketch.lower(workload, target, space.schedule(row)))[-1][1]
            kinds = {s.kind for s in walk_statements(last.body) if isinstance(s, For)}
            assert kinds <= {LoopKind.SERIAL, LoopKind.PARALLEL}


def test_a_plain_nest_passes_through() -> None:
    kernel = loop_nest(random_workload(3))
    after = run_passes(kernel)
    assert [name for name, _ in after] == [name for name, _ in LOOP_PASSES]
    verify(after[-1][1])


def test_statements_may_stand_hundreds_of_levels_deep() -> None:
    """Kernels of several windows have so many buffers in registers, each of which stands around what uses it."""
    depth = 150
    x, y = (Buffer(name, (depth,), float32) for name in "XY")
    body: Stmt = Store(y, (index(0),), Load(x, (index(0),)))
    for n in range(depth):
        register = Buffer(f"r{n}", (1,), float32, MemoryScope.REGISTER)
        copied = Store(register, (index(0),), Load(x, (index(n),)))
        body = Allocate(register, seq(copied, Store(y, (index(n),), Load(register, (index(0),))), body))
    *_, (_, after) = run_passes(Kernel("nested", (x,), (y,), (), body))
    data = {"X": np.arange(depth, dtype=np.float32)}
    np.testing.assert_array_equal(interpret(after, data)["Y"], data["X"])
