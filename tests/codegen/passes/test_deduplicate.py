"""Loop nests that differ in names alone go through the passes, and into machine code, once."""

import numpy as np

from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import lower
from tilewright.codegen.passes.deduplicate import find_duplicates, structural_match
from tilewright.codegen.passes.pipeline import run_passes
from tilewright.core.dtypes import float32, float64
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load, Var
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import For, Kernel, LoopKind, Seq, Stmt, Store
from tilewright.ir.verify import verify
from tilewright.schedule.cpu.loops.sketch import CPU_LOOPS
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

TARGET = Target("llvm", "x86-64", ("avx", "avx2", "fma", "sse4.2"), 2, 32)
LAYERS = 3


def lowering_stages(width: int = 24) -> tuple[Workload, Schedule, Kernel]:
    workload = OPERATORS["mlp"].workload({"rows": 8, "width": width, "layers": LAYERS})
    schedule = CPU_LOOPS.space(workload, TARGET, limit=64).schedule(1)
    return workload, schedule, lower(workload, TARGET, schedule)


def test_equal_layers_are_found_and_made_from_the_first() -> None:
    workload, _, kernel = lowering_stages()
    assert isinstance(kernel.body, Seq)
    nests = len(kernel.body.statements) // LAYERS
    duplicates = find_duplicates(kernel.body.statements)
    assert {n: first for n, (first, _) in duplicates.items()} == {n: n % nests for n in range(nests, LAYERS * nests)}
    finished = run_passes(kernel)[-1][1]
    verify(finished)
    inputs = random_inputs(workload, 0)
    found, wanted = interpret(finished, inputs), reference(workload, inputs)
    for name in workload.outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-4)


def test_one_function_serves_all_layers() -> None:
    *_, kernel = lowering_stages(width=96)
    backend = backend_for(TARGET)
    text = backend.emit(run_passes(kernel)[-1][1], TARGET).text
    called = [
        line.split("@")[2].split(",")[0] for line in text.splitlines() if "call void @tilewright_parallel" in line
    ]
    assert isinstance(kernel.body, Seq)
    assert len(called) == len(kernel.body.statements) and len(set(called)) == len(called) // LAYERS


def test_what_differs_in_more_than_names_does_not_match() -> None:
    *_, narrow = lowering_stages()
    *_, wide = lowering_stages(width=32)
    assert isinstance(narrow.body, Seq) and isinstance(wide.body, Seq)
    first, second = narrow.body.statements[0], wide.body.statements[0]
    assert structural_match(first, second) is None
    assert structural_match(first, narrow.body.statements[1]) is None
    assert structural_match(first, first) is not None


def test_names_are_matched_one_to_one() -> None:
    """Nests do not match where two names would become one, or one would become two."""
    a, b = (Buffer(name, (4,), float32) for name in "AB")

    def loop(var: str, target: Buffer, source: Buffer) -> Stmt:
        return For(var, 4, LoopKind.SERIAL, Store(target, (Var(var),), Load(source, (Var(var),))))

    assert structural_match(loop("i", a, b), loop("j", b, a)) == {"i": "j", "A": "B", "B": "A"}
    assert structural_match(loop("i", a, b), loop("i", a, a)) is None
    assert structural_match(loop("i", a, a), loop("i", a, b)) is None
    assert structural_match(loop("i", a, b), loop("i", a, Buffer("C", (4,), float64))) is None
