"""Products of tensors whose axes lie in an order that no kernel of a product has."""

from collections.abc import Mapping

import pytest

from tests.sketch_agreement import check_schedules
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import SKETCHES, class_sketches
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
SKETCH = SKETCHES["cuda_permuted"]


def contraction(x: str, y: str, out: str, dtype: str = "float16", scale: str = "", **extents: int) -> Workload:
    """Return the contraction of tensors with these axes, as in ``einsum``. ``scale``: the axes of a third factor."""
    tensors = {name: axes for name, axes in (("X", x), ("Y", y), ("Z", scale)) if axes}
    text = [f"{name}: {dtype}[{', '.join(str(extents[a]) for a in axes)}]" for name, axes in tensors.items()]
    product = " * ".join(f"float32({name}[{', '.join(axes)}])" for name, axes in tensors.items())
    reduced = ", ".join(f"{a} < {n}" for a, n in extents.items() if a not in out)
    kept = ", ".join(f"{a} < {extents[a]}" for a in out)
    text.append(f"S[{kept}] = sum over {reduced} of {product}")
    text += [f"O[{kept}] = {dtype}(S[{', '.join(out)}])"] if dtype != "float32" else []
    return parse_workload("\n".join(text))


CASES: Mapping[str, tuple[Workload, set[str]]] = {
    "an operand with the batch last": (contraction("bik", "jkb", "bij", b=3, i=72, j=40, k=64), {"both"}),
    "results with the batch last": (contraction("bik", "bjk", "ijb", b=3, i=72, j=40, k=64), {"both"}),
    "operands and results": (
        contraction("kib", "bjk", "jbi", b=3, i=72, j=40, k=64),
        {"both"},
    ),
    "both, or one of them": (
        contraction("bkih", "bhjk", "ijbh", b=2, h=3, i=40, j=24, k=32),
        {"both", "operands", "results"},
    ),
    "another order of the sum": (contraction("pki", "jkp", "ij", p=5, i=72, j=40, k=16), {"both"}),
    "rows apart": (contraction("ipk", "jk", "ijp", "float32", p=5, i=16, j=40, k=32), {"both"}),
    "a factor of the results": (contraction("bik", "jkb", "bij", scale="bj", b=3, i=72, j=40, k=64), {"both"}),
    "axes of one element": (contraction("abik", "jkb", "bija", a=1, b=3, i=72, j=40, k=64), {"both"}),
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
    heads = contraction("bihk", "bjhk", "bhij", b=2, h=3, i=72, j=40, k=64)  # rows of heads, as attention has them
    assert not SKETCH.matches(heads, H200)


@pytest.mark.parametrize(
    "workload",
    [
        contraction("dci", "jdc", "ij", i=72, j=40, c=16, d=8),  # the axes of the sum are written in another order
        contraction("bihk", "bejk", "bheij", b=2, h=3, e=2, i=72, j=40, k=64),  # outer axes of both sides
        contraction("ik", "bjk", "ibj", scale="ij", i=72, b=5, j=8, k=64),
        contraction("ik", "bjk", "ibj", scale="bi", i=72, b=6, j=24, k=64),
    ],
    ids=["order of the sum", "outer axes", "a factor of some columns", "a factor of rows and outer columns"],
)
def test_classes_take_what_needs_no_copies(workload: Workload) -> None:
    assert "cuda_gemm" in [s.name for s in class_sketches(workload, H200)]
    assert check_schedules("cuda_gemm", H200, workload, 0, 2) == 2
