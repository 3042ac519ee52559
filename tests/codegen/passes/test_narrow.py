"""Narrowed tails have no masks where their width is known."""

import numpy as np
import pytest

from tilewright.codegen.passes.narrow import narrow
from tilewright.core.dtypes import INDEX, float32, int32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Broadcast, Cast, Compare, CompareOp, Load, Ramp, index
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Kernel, Store, walk_statements
from tilewright.ir.verify import verify


@pytest.mark.parametrize("on, masked", [(8, False), (4, False), (3, True), (2, False), (1, False), (5, True)])
def test_known_lanes_are_stored_as_narrow_as_they_are(on: int, masked: bool) -> None:
    a, c = Buffer("A", (on,), int32), Buffer("C", (on,), float32)
    ramp = Ramp(index(0), 1, 8)
    mask = Compare(CompareOp.LT, ramp, Broadcast(index(on), 8))
    store = Store(c, (ramp,), Cast(Load(a, (ramp,), mask), float32), mask)
    after = narrow(Kernel("k", (a,), (c,), (), store))
    verify(after)
    (left,) = [s for s in walk_statements(after.body) if isinstance(s, Store)]
    assert (left.mask is not None) == masked
    data = {"A": np.arange(on, dtype=np.int32)}
    np.testing.assert_array_equal(interpret(after, data)["C"], data["A"].astype(np.float32))


def test_other_masks_are_left() -> None:
    a, c = Buffer("A", (8,), int32), Buffer("C", (8,), int32)
    ramp = Ramp(index(0), 1, 8)
    mask = Compare(CompareOp.GE, ramp, Broadcast(index(3), 8))
    store = Store(c, (ramp,), Load(a, (ramp,), mask), mask)
    assert narrow(Kernel("k", (a,), (c,), (), store)).body == store
    assert ramp.dtype == INDEX
