"""The schedules of workloads that nobody has tuned, and which settings a space holds for promising."""

import numpy as np

from tests.schedule.gpu.tiles import H200, workload_of
from tilewright.core.policy import SpacePolicy
from tilewright.schedule.defaults import default_schedule, default_schedules
from tilewright.schedule.gpu.columnwise.space import CUDA_COLUMNWISE
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.schedule.gpu.window.space import CUDA_WINDOW

PRODUCT = workload_of("matmul", m=4096, n=512, k=512, dtype="float16")
DEPTHWISE = workload_of(
    "conv2d", batch=8, channels=96, height=28, width=28, filters=96, kernel_h=7, kernel_w=7, padding=3, groups=96,
    layout="NHWC", dtype="float16",
)  # fmt: skip


def test_stand_ins_differ_in_more_than_one_knob() -> None:
    for workload in (PRODUCT, DEPTHWISE):
        found = [dict(s.knobs) for s in default_schedules(workload, H200)]
        apart = [sum(a[k] != b[k] for k in a) for n, a in enumerate(found) for b in found[:n]]
        assert len(found) == 6 and min(apart) > 1


def test_the_first_is_what_the_prior_ranks_first_of_the_promising() -> None:
    for sketch, workload in ((CUDA_GEMM, PRODUCT), (CUDA_WINDOW, DEPTHWISE)):
        space = sketch.space(workload, H200)
        assert space.prior_seconds is not None
        best = space.schedule(int(np.argsort(space.prior_seconds, kind="stable")[0]))
        assert default_schedules(workload, H200)[0] == best


def test_few_long_rows_are_shared_by_the_device_where_clusters_are_slower() -> None:
    """On an H200 clusters of 16 take 42 us for this softmax and 90 us for this sum, parts in several launches 28 and
    60, and a cooperative launch takes 23 us for the softmax."""
    softmax = workload_of("softmax", rows=16, columns=1048576, dtype="float16")
    total = workload_of("reduce", shape=[4, 16777217], axes=[1])
    several = workload_of("softmax", rows=64, columns=262144, dtype="float16")
    found = [default_schedule(w, H200).sketch for w in (softmax, total, several)]
    assert found == ["cuda_rowwise_cooperative", "cuda_rowwise_split", "cuda_rowwise"]


def test_what_a_prior_holds_far_faster_is_promising_too() -> None:
    """Rules of thumb leave this narrow mean with settings of one block."""
    narrow = workload_of("reduce", shape=[6272, 32], axes=[0], kind="mean")
    promising, whole = (CUDA_COLUMNWISE.space(narrow, H200, policy=SpacePolicy(prune=p)) for p in (True, False))
    assert promising.prior_seconds is not None and whole.prior_seconds is not None
    assert len(promising) < len(whole) / 2
    assert promising.prior_seconds.min() <= 1.1 * whole.prior_seconds.min()
