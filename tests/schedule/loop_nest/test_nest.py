"""The plain loop nest: what it looks like, and that it computes the workload."""

import pytest

from tests.golden import check_golden
from tests.random_expressions import random_workload
from tests.schedule.agreement import assert_computes
from tests.schedule.primitives import workloads
from tilewright.core.dtypes import DTYPES, DType, float32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import BinaryOp, Load, Var
from tilewright.ir.rewrite import loop_names
from tilewright.ir.text import kernel_text
from tilewright.schedule.loop_nest.nest import identity, loop_nest
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Axis, Reducer, Stage, Workload


def test_golden() -> None:
    kernel = loop_nest(workloads.softmax())
    check_golden("schedule/golden/loop_nest.txt", kernel_text(kernel))
    assert [b.name for b in kernel.workspace] == ["M", "E", "S"]


@pytest.mark.parametrize("chunk", range(5))
def test_random_workloads(chunk: int) -> None:
    for seed in range(1000 + chunk * 20, 1020 + chunk * 20):
        workload = random_workload(seed)
        assert_computes(loop_nest(workload), workload, seed)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    operator = OPERATORS[name]
    example = min(
        (operator.workload(e) for e in operator.examples), key=lambda w: sum(s.tensor.elements for s in w.stages)
    )
    assert_computes(loop_nest(example), example)


def test_names_of_init_loops_give_way() -> None:
    """An axis may be called what the loop that initialises another one would be."""
    a = Buffer("A", (3, 4), float32)
    axes, reduced = (Axis("i", 3),), (Axis("i_init", 4),)
    body = Load(a, (Var("i"), Var("i_init")))
    stage = Stage(Buffer("i_init_2", (3,), float32), axes, body, reduced, Reducer.MIN)
    workload = Workload((a,), (stage,), ("i_init_2",))
    kernel = loop_nest(workload)
    assert loop_names(kernel.body) == ("i_init_3", "i", "i_init")
    assert_computes(kernel, workload)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_identity(dtype: DType) -> None:
    lowest, highest = identity(BinaryOp.MAX, dtype), identity(BinaryOp.MIN, dtype)
    assert lowest.dtype == highest.dtype == dtype
    assert lowest.value < highest.value
    if dtype.is_integer:
        assert int(highest.value) - int(lowest.value) == (1 << dtype.bits) - 1
    if not dtype.is_bool:
        assert (identity(BinaryOp.ADD, dtype).value, identity(BinaryOp.MUL, dtype).value) == (0, 1)
