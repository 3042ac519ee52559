"""Decompositions of workloads that no kernel class takes as a whole: their steps, and what their kernels compute."""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

import numpy as np
import pytest

from tests.sketch_agreement import check_schedules
from tests.te.test_sums_of_products import complex_product
from tilewright.core.errors import IllegalSchedule
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target
from tilewright.schedule.decomposition import cpu_decompositions, decompositions
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import SKETCHES, class_sketches, sketches_for
from tilewright.schedule.tile_sketch import TileSketch
from tilewright.te.data import random_inputs
from tilewright.te.dynamic import with_dynamic
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
HOST = host_target("llvm")
SHARES = """
X: float32[37, 5, 6, 24]
S[i, j, l] = sum over k < 6 of X[i, j, k, l]
T[j] = max over i < 37, l < 24 of S[i, j, l]
A[j, l] = sum over i < 37, k < 6 of X[i, j, k, l] * X[i, j, k, l]   # output
Y[i, j, k, l] = X[i, j, k, l] / (abs(S[i, j, l]) + abs(T[j]) + 1)  # output
"""
"""What is reduced is reduced again, and one of three reductions is over every other axis."""


EMBEDDING = """
T: float16[50, 72]
I: int32[37]
M[i] = sum over d < 72 of float32(T[min(max(int64(I[i]), 0), 49), d])
V[i] = sum over d < 72 of abs(float32(T[min(max(int64(I[i]), 0), 49), d]) - M[i])
Y[i, d < 72] = float32(T[min(max(int64(I[i]), 0), 49), d]) * V[i]  # output
"""
"""Three stages read the same rows."""
PAIRS = """
T: float32[50, 72]
I: int32[37, 2]
J: int32[50]
K[i < 37] = int64(J[min(max(int64(I[i, 1]), 0), 49)])
Y[i] = sum over d < 72 of T[min(max(int64(I[i, 0]), 0), 49), d] * T[min(max(K[i], 0), 49), d]
"""
"""Two rows are multiplied. The index of one of them lies at a loaded index, too."""


_LOGITS = """
A: float16[72, 40]
B: float16[144, 40]
L[i, j] = sum over k < 40 of float32(A[i, k]) * float32(B[j, k])
"""
BOTH_DIRECTIONS = (
    _LOGITS
    + """
M[i] = max over j < 144 of L[i, j]
C[j] = max over i < 72 of L[i, j]
S[i] = sum over j < 144 of exp(L[i, j] - M[i])
T[j] = sum over i < 72 of exp(L[i, j] - C[j])
X[i < 72] = log(S[i]) + M[i] - L[i, i]
Y[j] = log(T[j]) + C[j]
"""
)
"""The losses of a contrastive model read the logits of pairs along rows and along columns."""
COVARIANCE = """
X: float32[4100, 24]
M[j] = sum over n < 4100 of X[n, j]
C[i < 24, j < 24] = sum over n < 4100 of (X[n, i] - M[i] / 4100) * (X[n, j] - M[j] / 4100)
"""
"""Both factors are the same tensor, and sums are long."""
SIMILARITY = """
X: float32[2, 21, 23]
Y: float32[2, 21, 23]
G: float32[6]
A[n, y, x < 18] = sum over j < 6 of X[n, y, x + j] * G[j]
C[n, y < 16, x] = sum over i < 6 of A[n, y + i, x] * G[i]
B[n, y, x < 18] = sum over j < 6 of X[n, y, x + j] * Y[n, y, x + j] * G[j]
D[n, y < 16, x] = sum over i < 6 of B[n, y + i, x] * G[i]
S[n, y, x] = D[n, y, x] - C[n, y, x] * C[n, y, x]
"""
"""Two images are blurred along rows, then along columns."""
NORMS_BEHIND = _LOGITS + "N[j] = sum over k < 40 of abs(float32(B[j, k]))\nM[i] = argmin over j < 144 of N[j] - L[i, j]"
BOTH_SIDES = _LOGITS + "S[] = sum over i < 72, j < 144 of max(L[i, j], 0)"


def _image(batch: int, size: int, dtype: str, layout: str, **more: object) -> Callable[[], Workload]:
    parameters: dict[str, object] = {
        "batch": batch,
        "channels": 8,
        "height": size,
        "width": size,
        "filters": 64,
        "layout": layout,
    }
    parameters |= {"kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": dtype, **more}
    return lambda: OPERATORS["conv2d"].workload(parameters)


def _attention(queries: str, keys: str) -> str:
    """The scores of keys have a scale each."""
    return f"""
Q: {queries}[3, 20, 32]
K: {keys}[3, 70, 32]
V: {keys}[3, 70, 16]
A: float32[3, 70]
S[h, i, j] = sum over r < 32 of float32(Q[h, i, r]) * float32(K[h, j, r])
L[h, i, j] = S[h, i, j] * A[h, j] * 0.01
T[h, i] = max over t < 70 of L[h, i, t]
P[h, i, j] = exp(L[h, i, j] - T[h, i])
U[h, i] = sum over t < 70 of P[h, i, t]
O[h, i, e] = sum over w < 70 of float32(float16(P[h, i, w])) * float32(V[h, w, e])
Y[h, i, e] = float16(O[h, i, e] / U[h, i])"""


DECAYED = {
    "a moving average": "X: float32[24, 75]\nY[i, t < 75] = sum over s < 75 of "
    "select(s <= t, exp(-0.05 * float32(t - s)) * X[i, s], 0.0)",
    "moving average over a time": "X: float32[5, 70]\nY[i, t < 70] = sum over s < 70 of "
    "select(s <= t, exp(-(float32(t) - float32(s)) / 12) * X[i, s], 0.0)",
    "moving average, backwards": "X: float32[5, 70]\nY[i, t < 70] = sum over s < 70 of "
    "select(s >= t, exp((float32(t) - float32(s)) * 0.2) * X[i, s], 0.0)",
    "discounted returns": "R: float32[9, 70]\nG: float32[9]\nY[i, t < 70] = sum over s < 70 of "
    "select(s >= t, pow(1 / (1 + exp(-G[i])), float32(s - t)) * R[i, s], 0.0)",
    "weights of earlier keys": "K: float32[2, 70, 24]\nV: float32[2, 70, 24]\nD: float32[24]\n"
    "A[b, t < 70, c] = sum over s < 70 of "
    "select(s < t, exp(K[b, s, c] - abs(D[c]) * float32(t - s)) * V[b, s, c], 0.0)\n"
    "Z[b, t < 70, c] = sum over s < 70 of select(s < t, exp(K[b, s, c] - abs(D[c]) * float32(t - s)), 0.0)\n"
    "Y[b, t, c] = A[b, t, c] / (Z[b, t, c] + 1)",
}
"""Sums of what is earlier, or later, and counts the less the further it is away."""
EXPERTS = """
X: float16[24, 72]
E: int32[24, 2]
W: float16[5, 40, 72]
C[t, s, j] = sum over k < 72 of float32(X[t, k]) * float32(W[min(max(int64(E[t, s]), 0), 4), j, k])
Y[t, s, j] = float16(C[t, s, j])
"""
"""Two matrices for each row, whose numbers are loaded."""
GRADIENTS = """
Q: float16[2, 40, 16]
K: float16[2, 72, 16]
V: float16[2, 72, 16]
D: float16[2, 40, 16]
L: float32[2, 40]
R: float32[2, 40]
S[h, q, k < 72] = sum over c < 16 of float32(Q[h, q, c]) * float32(K[h, k, c])
P[h, q, k] = float16(exp(S[h, q, k] * 0.25 - L[h, q]))
A[h, q, k < 72] = sum over c < 16 of float32(D[h, q, c]) * float32(V[h, k, c])
G[h, q, k] = float16(float32(P[h, q, k]) * (A[h, q, k] - R[h, q]) * 0.25)
X[h, k, c < 16] = sum over q < 40 of float32(P[h, q, k]) * float32(D[h, q, c])
Y[h, q, c < 16] = sum over k < 72 of float32(G[h, q, k]) * float32(K[h, k, c])
Z[h, k, c < 16] = sum over q < 40 of float32(G[h, q, k]) * float32(Q[h, q, c])
dV[h, k, c] = float16(X[h, k, c])   # output
dQ[h, q, c] = float16(Y[h, q, c])   # output
dK[h, k, c] = float16(Z[h, k, c])   # output
"""
"""Five products. Weights and the gradients of scores are read by several of them."""


BLOCKS = {
    "a trace of products": "A: float32[3, 48, 80]\nB: float32[3, 80, 48]\n"
    "Y[b] = sum over i < 48, j < 80 of A[b, i, j] * B[b, j, i]",
    "all elements of a transposed product": "A: float32[80, 112]\nB: float16[112, 80]\n"
    "Y[] = sum over i < 80, j < 112 of A[i, j] * float32(B[j, i])",
    "a diagonal of a product": "A: float32[96, 160]\nB: float32[160, 96]\nY[i] = sum over k < 160 of A[i, k] * B[k, i]",
    "the greatest difference from a transposed matrix": "A: float32[96, 96]\n"
    "Y[] = max over i < 96, j < 96 of abs(A[i, j] - A[j, i])",
    "a total variation": "X: float32[2, 3, 36, 45]\nY[] = sum over b < 2, c < 3, i < 35, j < 44 of "
    "abs(X[b, c, i + 1, j] - X[b, c, i, j]) + abs(X[b, c, i, j + 1] - X[b, c, i, j])",
    "a total variation of a prime number of rows": "X: float32[68, 45]\nY[] = sum over i < 67, j < 44 of "
    "abs(X[i + 1, j] - X[i, j]) + abs(X[i, j + 1] - X[i, j])",
    "neighbours around a torus": "S: float32[48, 80]\nY[] = sum over i < 48, j < 80 of "
    "S[i, j] * (S[(i + 1) % 48, j] + S[i, (j + 1) % 80])",
    "all differences from a transposed matrix, to a vector of one": "X: float32[96, 96]\n"
    "Y[a < 1] = sum over i < 96, j < 96 of abs(X[i, j] - X[j, i])",
    "the greatest step of rows of a prime number": "X: float16[64, 59]\n"
    "Y[] = max over b < 64, i < 53 of abs(float32(X[b, i + 1]) - float32(X[b, i]))",
    "gathered elements": "X: float32[50]\nI: int32[4096]\nY[] = sum over i < 4096 of X[min(max(int64(I[i]), 0), 49)]",
}
"""Reductions to few results that read rows of one matrix, columns of another one, or elements beside each other."""


WORKLOADS: dict[str, Callable[[], Workload]] = {
    **{name: partial(parse_workload, text) for name, text in BLOCKS.items()},
    "shares": lambda: parse_workload(SHARES),
    "convolution in float32": _image(2, 8, "float32", "NHWC", bias=True, activation="relu"),
    "convolution with channels first": _image(2, 9, "float16", "NCHW"),
    "patches": _image(1, 136, "bfloat16", "NCHW", kernel_h=8, kernel_w=8, stride=8, padding=0),
    "few channels": _image(1, 9, "float16", "NCHW", channels=3, dilation=2),
    "nearest": lambda: parse_workload(
        "A: float32[37, 40]\nB: float32[29, 40]\n"
        "D[i, j] = sum over k < 40 of abs(exp(A[i, k]) - exp(B[j, k]))\nN[i] = min over j < 29 of D[i, j]"
    ),
    "rows of an embedding": lambda: parse_workload(EMBEDDING),
    "pairs of rows": lambda: parse_workload(PAIRS),
    "a triangle and a ramp": lambda: parse_workload(
        "A: float16[37, 40]\nB: float16[40, 32]\nC[i < 37, j < 32] = sum over k < 40 of "
        "select(k <= i, float32(A[i, k]), 0.0) * max(float32(B[k, j]), 0.0)"
    ),
    "complex numbers": lambda: complex_product("float16", 40, 36, 24),
    "attention of 8-bit floats": lambda: parse_workload(_attention("float8_e4m3fn", "float8_e5m2")),
    "keys and values of 8 bits": lambda: parse_workload(_attention("float16", "int8")),
    "covariances": lambda: parse_workload(COVARIANCE),
    "similarity of images": lambda: parse_workload(SIMILARITY),
    "both directions of a product": lambda: parse_workload(BOTH_DIRECTIONS),
    "norms behind a product": lambda: parse_workload(NORMS_BEHIND),
    "both sides of a product": lambda: parse_workload(BOTH_SIDES),
    "gradient towards filters": lambda: parse_workload(
        "D: float16[8, 9, 9, 16]\nX: float16[8, 9, 9, 24]\nG[k, r < 3, s < 3, c] = sum over n < 8, y < 9, x < 9 of "
        "float32(D[n, y, x, k]) * select(y + r >= 1 and x + s >= 1 and y + r < 10 and x + s < 10, "
        "float32(X[n, y + r - 1, x + s - 1, c]), 0.0)"
    ),
    "gradient towards images": lambda: parse_workload(
        "D: float32[2, 5, 16]\nW: float32[16, 3, 8]\nG[n, x < 10, c] = sum over r < 3, k < 16 of "
        "select((x + 1 - r) % 2 == 0 and x + 1 >= r and (x + 1 - r) // 2 < 5, D[n, (x + 1 - r) // 2, k], 0.0) "
        "* W[k, r, c]"
    ),
    "displaced differences": lambda: parse_workload(
        "D: float16[3, 6, 6, 16]\nX: float16[3, 6, 6, 16]\nG[c, r < 3, s < 3] = sum over n < 3, y < 6, x < 6 of "
        "abs(float32(D[n, y, x, c]) - select(y + r >= 1 and x + s >= 1 and y + r < 7 and x + s < 7, "
        "float32(X[n, y + r - 1, x + s - 1, c]), 0.0))"
    ),
    "groups": _image(2, 8, "float32", "NHWC", groups=2, dilation=2),
    **{name: partial(parse_workload, text) for name, text in DECAYED.items()},
    "experts of rows": lambda: parse_workload(EXPERTS),
    "gradients of attention": lambda: parse_workload(GRADIENTS),
}
REPLICATED = """
X: float16[2, 8, 8, 64]
W: float16[16, 3, 3, 64]
Y[n, y < 8, x < 8, o] = sum over r < 3, s < 3, c < 64 of \
float32(X[n, min(max(y + r - 1, 0), 7), min(max(x + s - 1, 0), 7), c]) * float32(W[o, r, s, c])
"""
PAIRWISE: dict[str, Callable[[], Workload]] = {
    "distances of halves": lambda: parse_workload(
        "A: float16[37, 40]\nB: float16[40, 29]\n"
        "S[i, j] = sum over k < 40 of abs(float32(A[i, k]) - float32(B[k, j]))\nD[i, j] = float16(S[i, j])"
    ),
    "matches of bytes": lambda: parse_workload(
        "A: uint8[37, 40]\nB: uint8[29, 40]\nD[i, j] = sum over k < 40 of select(A[i, k] == B[j, k], 1i32, 0i32)"
    ),
    "additive attention": lambda: parse_workload(
        "Q: float16[3, 17, 40]\nK: float16[3, 29, 40]\nV: float16[40]\n"
        "S[b, i, j] = sum over c < 40 of float32(V[c]) * tanh(float32(Q[b, i, c]) + float32(K[b, j, c]))"
    ),
}


def _has_class(workload: Workload) -> bool:
    return any(True for _ in class_sketches(workload, H200))


@pytest.mark.parametrize("name", WORKLOADS | PAIRWISE)
def test_steps_compute_the_workload(name: str) -> None:
    workload = (WORKLOADS | PAIRWISE)[name]()
    sketch = "cuda_pairwise" if name in PAIRWISE else "cuda_decomposed"
    assert sketch in [s.name for s in sketches_for(workload, H200)]
    assert check_schedules(sketch, H200, workload, 0, 2) == 2


@pytest.mark.parametrize("name", ["attention of 8-bit floats", "keys and values of 8 bits"])
def test_attention_of_8_bits_is_one_kernel_behind_copies(name: str) -> None:
    steps = dict(decompositions(WORKLOADS[name](), _has_class))["widened"]
    assert [s.name for s in class_sketches(steps[-1], H200)] == ["cuda_attention"]


def test_factors_whose_values_are_narrow_are_stored_and_multiplied_so() -> None:
    """Matrix units multiply float16, and no step multiplies float32."""
    workload = WORKLOADS["a triangle and a ramp"]()
    found = decompositions(workload, _has_class)
    assert found
    for _, steps in found:
        assert all(t.dtype.name == "float16" for step in steps[:-1] for t in step.output_buffers)


def test_the_least_of_many_distances_is_computed_in_steps_by_default() -> None:
    """Tiles of generic loops take several times as long as their arithmetic at its peak."""
    rows = "A: float32[65536, 64]\nB: float32[256, 64]\n"
    distances = "D[i, j] = sum over k < 64 of (A[i, k] - B[j, k]) * (A[i, k] - B[j, k])\n"
    workload = parse_workload(f"{rows}{distances}N[i] = min over j < 256 of D[i, j]")
    assert [s.name for s in sketches_for(workload, H200)] == ["cuda_loops", "cuda_decomposed"]
    assert default_schedule(workload, H200).sketch == "cuda_decomposed"


@pytest.mark.parametrize("name", DECAYED)
def test_sums_that_decay_take_few_rounds(name: str) -> None:
    """Of 70 places, eight are added up, and then eight of these sums. A step may have several rounds."""
    steps = dict(decompositions(WORKLOADS[name](), _has_class))["doubled_scans"]
    assert len(steps) <= 4
    assert not any(stage.reduce_axes for step in steps for stage in step.stages)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_reduced_first(name: str) -> None:
    """Threads read neighbours in all tensors. What is left to be reduced is a small part."""
    workload = WORKLOADS[name]()
    blocks, total = dict(decompositions(workload, _has_class))["stages"]
    points = prod(a.extent for s in workload.stages for a in (*s.axes, *s.reduce_axes))
    assert 4 <= points / blocks.output_buffers[0].elements <= 64 and total.outputs == ("Y",)


@pytest.mark.parametrize("name", ["a trace of products", "the greatest difference from a transposed matrix"])
def test_a_processor_reduces_blocks_first_where_rows_are_read_across(name: str) -> None:
    workload = WORKLOADS[name]()
    ((form, (blocks, _)),) = cpu_decompositions(workload, lambda w: any(True for _ in class_sketches(w, HOST)))
    assert form == "blocks" and blocks.stages[0].reduce_axes[0].extent == 16
    assert check_schedules("cpu_decomposed", HOST, workload, 0, 2) == 2


def test_what_has_no_class_in_steps_is_reduced_along_the_last_axes_first() -> None:
    """The generic sketch has a block for each result: it leaves most of a device idle where there is one."""
    workload = parse_workload("X: float32[2100]\nY[] = sum over i < 2100, j < 2100 of exp(-abs(X[i] - X[j]))")
    ((name, (rows, total)),) = decompositions(workload, _has_class)
    assert name == "outer_first" and rows.output_buffers[0].shape == (2100,) and _has_class(total)
    assert check_schedules("cuda_decomposed", H200, workload, 0, 1) == 1


def test_a_rate_that_is_read_at_each_place_is_left_as_it_is() -> None:
    """Some of its powers may be beyond all floats where those of the whole sum are not."""
    text = "L: float32[70]\nY[t < 70] = sum over s < 70 of select(s <= t, exp(L[t] - L[s]) * L[s], 0.0)"
    assert "doubled_scans" not in dict(decompositions(parse_workload(text), _has_class))


def test_products_with_the_experts_of_rows_are_computed_with_all_experts() -> None:
    """These are fewer than there are rows, so that less is moved than by copying the matrix of each row."""
    steps = dict(decompositions(parse_workload(EXPERTS), _has_class))
    product, chosen = steps["gathered_last"]
    assert [b.shape for b in product.output_buffers] == [(24, 5, 40)] and chosen.outputs == ("Y",)
    assert [b.shape for b in steps["gathered"][0].output_buffers] == [(24, 2, 40, 72)]


def test_gradients_of_attention_are_five_products() -> None:
    """What scores become is part of the products ahead, and stored as float16."""
    steps = dict(decompositions(parse_workload(GRADIENTS), _has_class))["as_written"]
    assert [[b.name for b in step.output_buffers] for step in steps] == [["P"], ["G"], ["dV"], ["dQ"], ["dK"]]
    assert {b.dtype.name for step in steps for b in step.output_buffers} == {"float16"}


def test_one_pairwise_reduction_is_a_class() -> None:
    """Whoever joins kernels may rely on it: nothing is stored for each term."""
    assert all(_has_class(make()) for make in PAIRWISE.values()) and not _has_class(WORKLOADS["nearest"]())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_convolution_with_strides_is_a_product_on_a_processor(layout: str) -> None:
    """The generic sketch takes everything else there."""
    workload = _image(2, 16, "float32", layout, stride=2, bias=True, activation="relu")()
    assert [s.name for s in sketches_for(workload, HOST)] == ["cpu_gemm"]


def test_a_convolution_with_strides_and_few_filters_is_a_product_of_a_copy() -> None:
    workload = _image(2, 16, "float32", "NCHW", stride=2, filters=32, bias=True, activation="relu")()
    assert [s.name for s in sketches_for(workload, HOST)] == ["cpu_loops", "cpu_decomposed"]
    assert check_schedules("cpu_decomposed", HOST, workload, 0, 4) == 4


def test_results_that_no_product_stores_are_copied_last() -> None:
    """Phases of a transposed convolution lie between the pixels of others."""
    parameters = {"batch": 1, "channels": 8, "height": 9, "width": 9, "filters": 32, "kernel_h": 4, "kernel_w": 4}
    workload = OPERATORS["conv2d_transpose"].workload({**parameters, "stride": 2, "padding": 1})

    def in_one_step(step: Workload) -> bool:
        return any(isinstance(sketch, TileSketch) for sketch in class_sketches(step, HOST))

    steps = dict(cpu_decompositions(workload, in_one_step))["stages"]
    assert [s.name for s in steps[-1].stages] == ["Y"] and steps[-2].output_buffers[0].shape == (1, 9, 9, 32, 2, 2)
    assert check_schedules("cpu_decomposed", HOST, workload, 0, 3) == 3


def test_steps_are_runs_of_stages_that_a_class_takes() -> None:
    ((name, steps), *_) = decompositions(parse_workload(SHARES), _has_class)
    assert name == "stages"
    assert all(map(_has_class, steps))
    assert [[s.name for s in step.stages] for step in steps] == [["S"], ["T"], ["partial"], ["A"], ["Y"]], steps


def test_a_convolution_becomes_a_matrix_of_patches_and_a_product() -> None:
    """So does im2col."""
    (name, (patches, product)), *_ = decompositions(WORKLOADS["convolution with channels first"](), _has_class)
    assert name == "stages"
    assert patches.stages[0].tensor.shape == (2, 9, 9, 8, 3, 3)
    assert patches.stages[0].tensor.dtype.name == "float16"
    assert "cuda_gemm" in [s.name for s in class_sketches(product, H200)]


def test_a_factor_that_stands_on_both_sides_is_computed_once_and_long_sums_are_split() -> None:
    steps = dict(decompositions(WORKLOADS["covariances"](), _has_class))
    (sums, *parts) = steps["stages_split_k"]
    assert [s.name for s in sums.stages] == ["M", "factor"] and sums == steps["stages"][0]
    assert [[s.tensor.shape for s in step.stages] for step in parts] == [[(20, 24, 24)], [(24, 24)]]


def test_stages_of_a_level_are_computed_together() -> None:
    steps = dict(decompositions(WORKLOADS["similarity of images"](), _has_class))["levels"]
    assert [[s.name for s in step.stages] for step in steps] == [["A", "B"], ["C", "D", "S"]]


def test_sums_of_neighbours_along_one_axis_are_windows_with_their_axes_in_the_order_of_memory() -> None:
    """The rows of images are summed up first, those of all places of a filter at once."""
    text = (
        "D: float16[4, 28, 28, 16]\nX: float16[4, 30, 30, 16]\nG[c, r < 3, s < 3] = sum over n < 4, y < 28, x < 28 of "
        "abs(float32(D[n, y, x, c]) - float32(X[n, y + r, x + s, c]))"
    )
    (partial, *_), *_ = (steps for _, steps in decompositions(parse_workload(text), _has_class))
    assert partial.output_buffers[0].shape == (4, 28, 3, 3, 16)
    assert [s.name for s in class_sketches(partial, H200)] == ["cuda_window"]


def test_phases_of_a_gradient_have_no_terms_that_are_left_out() -> None:
    """Of three taps, two remain for each position."""
    steps = dict(decompositions(WORKLOADS["gradient towards images"](), _has_class))
    assert [b.elements for b in steps["phased"][0].output_buffers] == [2 * 5 * 2 * 16]


def test_a_replicated_border_is_a_step_ahead_of_the_convolution() -> None:
    workload = parse_workload(REPLICATED)
    steps = dict(decompositions(workload, _has_class))["padded"]
    assert [next(s.name for s in sketches_for(step, H200)) for step in steps] == ["cuda_pointwise", "cuda_conv_mma"]
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == "cuda_decomposed" and dict(schedule.knobs)["decomposition"] == "padded"


def test_rows_at_loaded_indices_are_copied_once() -> None:
    ((name, (copy, rows)),) = decompositions(parse_workload(EMBEDDING), _has_class)
    assert name == "gathered"
    assert [s.tensor.shape for s in copy.stages] == [(37, 72)] and [s.name for s in rows.stages] == ["M", "V", "Y"]
    found = decompositions(parse_workload(PAIRS), _has_class)
    assert [[s.tensor.shape for s in step.stages] for step in dict(found)["gathered"]][-1] == [(37,)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (BOTH_DIRECTIONS, [["L", "M", "S", "X"], ["L_2", "C", "T", "Y"]]),
        (NORMS_BEHIND, [["N"], ["L", "M"]]),
        (BOTH_SIDES, [["L", "S_rows"], ["S"]]),
    ],
    ids=["directions", "norms", "sides"],
)
def test_products_that_are_reduced_are_not_stored(text: str, wanted: list[list[str]]) -> None:
    workload = parse_workload(text)
    steps = dict(decompositions(workload, _has_class))["reduced_products"]
    assert [[s.name for s in step.stages] for step in steps] == wanted
    tensors = random_inputs(workload, 2)
    expected = reference(workload, tensors)
    for step in steps:
        tensors |= reference(step, {b.name: tensors[b.name].astype(b.dtype.numpy) for b in step.inputs})
    for name, value in expected.items():
        np.testing.assert_allclose(tensors[name], value, rtol=1e-5)


def test_a_product_that_is_stored_anyway_is_computed_once() -> None:
    text = BOTH_DIRECTIONS.replace("float32(B[j, k])", "float32(B[j, k])   # output")
    found = decompositions(parse_workload(text), _has_class)
    assert [name for name, _ in found] == ["stages"]


def test_outputs_are_no_workspace() -> None:
    workload = parse_workload(SHARES)
    sketch = SKETCHES["cuda_decomposed"]
    kernel = sketch.lower(workload, H200, sketch.space(workload, H200, limit=1).schedule(0))
    assert {b.name for b in kernel.outputs} == {"A", "Y"}
    assert {"S", "T", "partial"} <= {b.name for b in kernel.workspace}
    assert not {"A", "Y"} & {b.name for b in kernel.workspace}


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        ("softmax", {"rows": 64, "columns": 100}),
        ("matmul", {"m": 64, "n": 64, "k": 64, "dtype": "float16"}),
        ("reduce", {"shape": [64, 100], "axes": [0], "kind": "sum"}),
    ],
)
def test_what_a_class_takes_is_not_decomposed(operator: str, parameters: Mapping[str, object]) -> None:
    workload = OPERATORS[operator].workload(parameters)
    with pytest.raises(IllegalSchedule, match="none takes as a whole"):
        SKETCHES["cuda_decomposed"].space(workload, H200)


def test_sums_that_are_kept_in_16_bits_are_not_split() -> None:
    narrow = parse_workload("X: float16[6, 5, 7]\nA[j] = sum over i < 6, k < 7 of X[i, j, k]")
    assert decompositions(narrow, _has_class) == []


def test_dynamic_workloads_are_not_decomposed() -> None:
    dynamic = with_dynamic(OPERATORS["softmax"].workload({"rows": 64, "columns": 100}))
    assert decompositions(dynamic, lambda _: True) == []
