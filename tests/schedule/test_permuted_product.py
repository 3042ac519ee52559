"""Products of tensors whose axes lie in an order that no kernel of a product has."""

from collections.abc import Mapping

import pytest

from tests.chains import einsum
from tests.sketch_agreement import check_schedules
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import SKETCHES, class_sketches
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
SKETCH = SKETCHES["cuda_permuted"]
NARROW = """
X: float16[72, 64, 3]
Y: float16[3, 40, 64]
S[i, j, b] = sum over k < 64 of float32(X[i, k, b]) * float32(Y[b, j, k])
O[i, j, b] = float16(S[i, j, b])
"""
ANOTHER_ORDER = """
X: float16[8, 16, 72]
Y: float16[40, 8, 16]
S[i, j] = sum over c < 16, d < 8 of float32(X[d, c, i]) * float32(Y[j, d, c])
"""


BATCH = {"b": 3, "i": 72, "j": 40, "k": 64}
CASES: Mapping[str, tuple[Workload, set[str]]] = {
    "an operand with the batch last": (einsum("bik,jkb->bij", BATCH, "float16"), {"both"}),
    "results with the batch last": (einsum("bik,bjk->ijb", BATCH, "float16", relu=True), {"both"}),
    "operands and results": (einsum("kib,bjk->jbi", BATCH, "float16"), {"both"}),
    "both, or one of them": (
        einsum("bkih,bhjk->ijbh", {"b": 2, "h": 3, "i": 40, "j": 24, "k": 32}, "bfloat16"),
        {"both", "operands", "results"},
    ),
    "another order of the sum": (einsum("pki,jkp->ij", {"p": 5, "i": 72, "j": 40, "k": 16}, "float16"), {"both"}),
    "rows apart": (einsum("ipk,jk->ijp", {"p": 5, "i": 16, "j": 40, "k": 32}), {"both"}),
    "a factor of the results": (einsum("bik,jkb,bj->bij", BATCH, "float16"), {"both"}),
    "axes of one element": (einsum("abik,jkb->bija", {"a": 1, **BATCH}, "float16"), {"both"}),
    "results of 16 bits": (parse_workload(NARROW), {"both", "operands", "results"}),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_compute_the_product(name: str) -> None:
    workload, wanted = CASES[name]
    (knob,) = (k for k in SKETCH.knobs(workload, H200) if k.name == "permuted")
    assert SKETCH in class_sketches(workload, H200) and {*knob.values} == wanted
    assert check_schedules(SKETCH.name, H200, workload, 0, 2) == 2


@pytest.mark.parametrize("name", CASES)
def test_steps_compute_the_product_on_a_processor(name: str) -> None:
    workload, _ = CASES[name]
    host = host_target("llvm")
    assert "cpu_permuted" in [s.name for s in class_sketches(workload, host)]
    assert check_schedules("cpu_permuted", host, workload, 0, 2) == 2


def test_products_in_an_order_of_their_own_have_no_copies() -> None:
    for operator, parameters in (
        ("matmul", {"m": 72, "n": 40, "k": 64, "transpose_a": True, "dtype": "float16"}),
        ("batch_matmul", {"batch": 3, "m": 72, "n": 40, "k": 64, "dtype": "float16"}),
        ("linear", {"rows": 72, "inputs": 64, "outputs": 40, "dtype": "float16", "bias": True}),
    ):
        assert not SKETCH.matches(OPERATORS[operator].workload(parameters), H200)
    heads = einsum("bihk,bjhk->bhij", {"h": 3, **BATCH}, "float16")  # rows of heads, as attention has them
    assert not SKETCH.matches(heads, H200)


@pytest.mark.parametrize(
    "workload",
    [
        parse_workload(ANOTHER_ORDER),
        einsum("bihk,bejk->bheij", {"h": 3, "e": 2, **BATCH}, "float16"),
        einsum("ik,bjk,ij->ibj", {**BATCH, "b": 5, "j": 8}, "float16"),
        einsum("ik,bjk,bi->ibj", {**BATCH, "b": 6, "j": 24}, "float16"),
    ],
    ids=["order of the sum", "outer axes", "a factor of some columns", "a factor of rows and outer columns"],
)
def test_classes_take_what_needs_no_copies(workload: Workload) -> None:
    assert "cuda_gemm" in [s.name for s in class_sketches(workload, H200)]
    assert check_schedules("cuda_gemm", H200, workload, 0, 2) == 2
