"""What a kernel tests at run time of elements that mostly follow each other."""

from tilewright.core.dtypes import float16
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load, Var, const, logical_and
from tilewright.schedule.tile.masked_loads import MaskedLoad
from tilewright.schedule.tile.runs import run_of
from tilewright.te.functions import negated

J, BEGIN, LAST = Var("j"), Var("begin"), Var("last")


def test_both_ends_of_a_run_are_tested_the_first_one_first() -> None:
    for padding in range(1, 20):
        load = Load(Buffer("X", (4096,), float16), (J - padding,))
        run = run_of(MaskedLoad(load, J >= padding, const(0, float16)), "j", 8)
        assert run is not None
        expected = logical_and(negated(BEGIN >= padding), negated(LAST >= padding))
        assert run.all_outside({"j": BEGIN}, LAST) == expected
