"""The schedules that the sanitizer checks: every layout, batches, epilogues and every value of a knob with few."""

from functools import cache

import pytest

from tilewright.benchmarks.variants import MOST_VALUES, PRODUCTS, Variant, spaces_of_products, variants
from tilewright.codegen.lowering import build
from tilewright.core.target import Target
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.operators import OPERATORS

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


@cache
def found_for(name: str) -> list[Variant]:
    return variants(SKETCHES[name], H200)


@pytest.mark.parametrize("name", ["cuda_gemm", "cuda_conv", "cuda_skinny_tma", "cuda_attention"])
def test_variants_have_every_value_and_every_case(name: str) -> None:
    sketch = SKETCHES[name]
    found, spaces = found_for(name), spaces_of_products(name, H200)
    taken = {n for n, (o, p) in PRODUCTS.items() if sketch.matches(OPERATORS[o].workload(p), H200)}
    assert {v.case for v in found} == taken == set(spaces) and len(found) < 4 * len(taken)
    for space in spaces.values():
        for knob in space.knobs:
            if len(knob.values) <= MOST_VALUES:
                values = set(space.column(knob.name).tolist())
                assert values <= {dict(v.schedule.knobs).get(knob.name) for v in found}, knob.name
    assert sum(len(v.has) for v in found) == len({(k, value) for v in found for k, value in v.has.items()})


def test_a_variant_can_be_built() -> None:
    last = found_for("cuda_gemm")[-1]
    assert build(OPERATORS[last.operator].workload(last.parameters), H200, last.schedule).code.startswith(b"\x7fELF")
