"""Masked loads of bodies: found, told apart, replaced."""

from tilewright.ir.expr import Const, Var
from tilewright.ir.rewrite import loads_of
from tilewright.schedule.tile.masked_loads import MaskedLoad, masked_loads_of, replace_masked_loads
from tilewright.schedule.tile.register_loads import depends_on, without_unneeded_mask
from tilewright.te import build as te


def test_masked_loads_are_told_apart_by_their_masks() -> None:
    x = te.placeholder((8,), "float32", "X")
    body = te.compute((8,), lambda i: te.select(i >= 1, x[i - 1], 0.0) + x[i] * x[i], "Y")
    stage = te.workload(body).stages[0]
    masked, plain = masked_loads_of(stage.body)
    assert masked.mask is not None and plain.mask is None
    replaced = replace_masked_loads(stage.body, {masked: Var("a"), plain: Var("b")})
    assert not loads_of(replaced)
    assert replace_masked_loads(stage.body, {MaskedLoad(masked.load, None): Var("a")}) == stage.body


def test_a_mask_is_dropped_where_nothing_needs_it() -> None:
    x = te.placeholder((8,), "float32", "X")
    stage = te.workload(te.compute((8,), lambda i: te.select(i >= 0, x[i], 7.0), "Y")).stages[0]
    (masked,) = masked_loads_of(stage.body)
    assert isinstance(masked.other, Const) and masked.other.value == 7.0
    assert without_unneeded_mask(masked, stage.axes) == MaskedLoad(masked.load)
    shifted = te.workload(te.compute((8,), lambda i: te.select(i >= 1, x[i - 1], 7.0), "Y")).stages[0]
    (needed,) = masked_loads_of(shifted.body)
    assert without_unneeded_mask(needed, shifted.axes) == needed


def test_a_load_depends_on_the_axes_of_its_mask_too() -> None:
    x = te.placeholder((8,), "float32", "X")
    stage = te.workload(te.compute((4, 8), lambda i, j: te.select(i >= 1, x[j], 0.0), "Y")).stages[0]
    (masked,) = masked_loads_of(stage.body)
    i, j = (a.name for a in stage.axes)
    assert depends_on(masked, i) and depends_on(masked, j) and not depends_on(masked, "other")
