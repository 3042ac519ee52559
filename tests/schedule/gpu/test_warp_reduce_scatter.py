"""Sums over the lanes of a warp, several values at once, against plain sums."""

import numpy as np
import pytest

from tilewright.codegen.lowering import finish
from tilewright.core.dtypes import float32
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Load, Shuffle, index, walk
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import HardwareAxis, Kernel, expressions, walk_statements
from tilewright.ir.verify import verify
from tilewright.schedule.gpu.warp_reduce_scatter import sum_over_lanes

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


def _kernel(count: int, apart: int) -> Kernel:
    """``OUT[value, lane modulo apart]`` from ``IN[lane, value]``, each written by the one lane that counts."""
    given, result = Buffer("IN", (32, count), float32), Buffer("OUT", (count, apart), float32)
    w = Writer()
    with w.launch("sums", [("block", 1, HardwareAxis.GRID_X), ("lane", 32, HardwareAxis.THREAD)]) as (_, lane):
        values = w.allocate("values", (count,), float32, MemoryScope.REGISTER)
        for number in range(count):
            w.store(values, (index(number),), Load(given, (lane, index(number))))
        for held in sum_over_lanes(w, values, lane, apart):
            with w.when(held.here):
                w.store(result, (held.number, lane % apart), Load(values, (index(held.slot),)))
    return Kernel("sums", (given,), (result,), (), w.finish())


@pytest.mark.parametrize("apart", [1, 2, 8, 16])
@pytest.mark.parametrize("count", [*range(1, 34), 40, 64, 71])
def test_every_sum_is_in_one_lane(count: int, apart: int) -> None:
    kernel = _kernel(count, apart)
    verify(kernel)
    given = np.random.default_rng(count).integers(-999, 999, (32, count)).astype(np.float32)
    wanted = given.reshape(32 // apart, apart, count).sum(axis=0).T
    np.testing.assert_array_equal(interpret(finish(kernel, H200), {"IN": given})["OUT"], wanted)


@pytest.mark.parametrize(
    ("count", "apart", "shuffles"),
    [(1, 1, 5), (2, 1, 5), (12, 1, 16), (16, 1, 16), (32, 1, 31), (40, 1, 40), (8, 4, 7)],
)
def test_a_lane_gives_half_of_its_values_away(count: int, apart: int, shuffles: int) -> None:
    roots = [e for s in walk_statements(_kernel(count, apart).body) for e in expressions(s)]
    assert sum(isinstance(e, Shuffle) for root in roots for e in walk(root)) == shuffles
