"""Products on the matrix units of warpgroups: what they take, what they compute, what the compiler makes of them."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.sketches.tiles import H200, assert_agrees, compiled, schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.road import finish
from tilewright.core.target import Target
from tilewright.schedule.sketches.cuda_skinny_groups import CUDA_SKINNY_GROUPS as SKETCH
from tilewright.te.workload import Workload

SIXTY_FOUR = workload_of("linear", rows=64, inputs=4096, outputs=4096, dtype="float16", bias=False)
LONG = workload_of("linear", rows=64, inputs=4096, outputs=28672, dtype="bfloat16", bias=False)

CASES: dict[str, Callable[[], Workload]] = {
    "epilogue": lambda: workload_of(
        "linear", rows=17, inputs=648, outputs=100, dtype="float16", activation="gelu_tanh", residual=True
    ),
    "n of no multiple": lambda: workload_of("linear", rows=33, inputs=264, outputs=77, dtype="bfloat16"),
    "all rows": lambda: workload_of("linear", rows=64, inputs=384, outputs=192, dtype="bfloat16", bias=False),
    "swapped": lambda: workload_of("matmul", m=72, n=20, k=264, dtype="float16", transpose_b=True),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case]()) == 20


def test_what_it_leaves_to_others() -> None:
    assert SKETCH.matches(SIXTY_FOUR, H200)
    assert not SKETCH.matches(SIXTY_FOUR, Target("cuda", "sm_89", (), threads=132, vector_bytes=16))
    assert not SKETCH.matches(workload_of("linear", rows=16, inputs=64, outputs=64, dtype="float16"), H200)
    assert not SKETCH.matches(workload_of("matmul", m=64, n=128, k=64, dtype="float16"), H200)


@pytest.mark.parametrize("workload", [SIXTY_FOUR, LONG], ids=["4096", "28672"])
def test_spaces_are_small_and_every_setting_fits(workload: Workload) -> None:
    space = SKETCH.space(workload, H200)
    assert 10 <= len(space) <= 60
    assert (space.quantities["bytes_in_flight"] >= 24 * 1024).all()
    schedules = [space.schedule(r) for r in range(len(space))]
    derived = SKETCH.derive(workload, H200, schedules)
    for name, column in space.quantities.items():
        np.testing.assert_array_equal(derived[name], column)
    for schedule, shared in list(zip(schedules, derived["shared_bytes"], strict=True))[::6]:
        (launch,) = backend_for(H200).emit(finish(SKETCH.lower(workload, H200, schedule), H200), H200).launches
        assert launch.shared_bytes == int(shared) <= 227 * 1024


@pytest.mark.parametrize(("workload", "split"), [(SIXTY_FOUR, 2), (LONG, 1)], ids=["4096", "28672"])
def test_nothing_spills_and_the_matrix_units_are_used(workload: Workload, split: int) -> None:
    resources = compiled(SKETCH, workload, split=split, groups_n=1)
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, split=split, groups_n=1)), H200)
    backend = backend_for(H200)
    assert "HGMMA.64x64x16.F32" in backend.assembly(backend.emit(kernel, H200), H200)
