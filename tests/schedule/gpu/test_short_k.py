"""Products whose ``k`` ends within a row of 128 bytes: what lies behind it is neither loaded nor multiplied."""

from typing import Any

import pytest

from tests.schedule.agreement import assert_computes
from tests.schedule.gpu.test_conv import FEW
from tests.schedule.gpu.tiles import H200, legal_schedule_of
from tilewright.codegen.lowering import finish
from tilewright.ir.gpu.tma import TmaLoad
from tilewright.ir.gpu.wgmma import WarpgroupMma
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.stmt import walk_statements
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload


def product(layout: str, k: int, m: int = 300, n: int = 72, batch: int = 1) -> Workload:
    """Return a product of float16. ``layout``: t for an operand whose rows do not lie along k, as in BLAS."""
    sides = {"a": ("m", m, layout[0] == "n"), "b": ("n", n, layout[1] == "t")}
    members = f"{batch}, " if batch > 1 else ""
    tensors, loads = [], []
    for name, (axis, extent, along_k) in sides.items():
        shape, at = (f"{extent}, {k}", f"{axis}, k") if along_k else (f"{k}, {extent}", f"k, {axis}")
        tensors.append(f"{name.upper()}: float16[{members}{shape}]")
        loads.append(f"float32({name.upper()}[{'e, ' if batch > 1 else ''}{at}])")
    own, of = (f"e < {batch}, ", "e, ") if batch > 1 else ("", "")
    text = f"S[{own}m < {m}, n < {n}] = sum over k < {k} of {loads[0]} * {loads[1]}"
    return parse_workload("\n".join([*tensors, text, f"C[{of}m, n] = float16(S[{of}m, n])"]))


CASES: dict[str, tuple[str, int, dict[str, Any], set[int]]] = {
    "one atom": ("nn", 40, {}, {48}),
    "one atom, no rows along k": ("tn", 40, {}, {48}),
    "two atoms in turn": ("nn", 80, {"k_atoms": 1}, {64, 16}),
    "two atoms at once": ("nn", 96, {"k_atoms": 2}, {64, 32}),
    "rows along k": ("nt", 80, {"k_atoms": 1}, {64, 16}),
    "rows along k that are mostly full": ("nt", 112, {"k_atoms": 1}, {64}),
    "no rows along k": ("tn", 80, {"k_atoms": 1}, {64, 16}),
    "rows of B alone along k": ("tt", 96, {"k_atoms": 2}, {64, 32}),
    "many atoms": ("nn", 336, {"k_atoms": 1}, {64}),
    "resident_b": ("nn", 160, {"resident_b": 1, "mma_n": 80}, {64, 32}),
    "a cluster shares columns": ("nn", 80, {"cluster_m": 2, "k_atoms": 1}, {64, 16}),
    "a cluster shares rows": ("tn", 80, {"cluster_n": 2, "mma_n": 48, "k_atoms": 1}, {64, 16}),
    "rows that are shifted": ("nn", 80, {"repacked": 0}, {64, 16}),
}


@pytest.mark.parametrize("case", CASES)
def test_places_behind_k_are_not_multiplied(case: str) -> None:
    layout, k, knobs, places = CASES[case]
    workload = product(layout, k, n=75 if "repacked" in knobs else 72)
    chosen = {"consumer_warpgroups": 1, "atoms_m": 1, **knobs}
    schedule = legal_schedule_of(CUDA_GEMM, workload, FEW, **chosen)
    kernel = simplify_kernel(CUDA_GEMM.lower(workload, FEW, schedule))
    assert {s.k for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)} == places
    assert_computes(finish(kernel, FEW), workload)


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_results_are_staged_in_the_place_of_a(layout: str) -> None:
    """A CTA with one tile does so, however few places of k there are."""
    workload = product(layout, 40, m=512, n=64)
    schedule = legal_schedule_of(CUDA_GEMM, workload, mma_n=64, epilogue_stages=1, consumer_warpgroups=2, split_k=1)
    assert_computes(finish(CUDA_GEMM.lower(workload, H200, schedule), H200), workload)


def test_a_batch_begins_at_other_places_of_k() -> None:
    workload = product("nn", 208, m=64, n=40, batch=5)
    schedule = legal_schedule_of(CUDA_GEMM, workload, FEW, k_atoms=1, consumer_warpgroups=1)
    assert_computes(finish(CUDA_GEMM.lower(workload, FEW, schedule), FEW), workload)


def test_lines_behind_k_are_not_loaded() -> None:
    """TMA takes longer to bring lines of zeros than lines."""
    workload = product("tn", 80)
    schedule = legal_schedule_of(CUDA_GEMM, workload, FEW, k_atoms=1, consumer_warpgroups=1, atoms_m=1, cluster_m=1)
    loads = [s for s in walk_statements(CUDA_GEMM.lower(workload, FEW, schedule).body) if isinstance(s, TmaLoad)]
    assert {tuple(s.box) for s in loads} == {(64, 64), (16, 64)}
