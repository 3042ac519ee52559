"""Every primitive on a small nest: the kernel it makes is kept as text, and computes what it computed before."""

from collections.abc import Callable

import pytest

from tests.golden import check_golden
from tests.schedule.agreement import assert_computes
from tests.schedule.primitives import workloads
from tilewright.ir.buffer import MemoryScope
from tilewright.ir.stmt import Kernel
from tilewright.ir.text import kernel_text
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.schedule.primitives import (
    PRIMITIVES,
    cache_read,
    cache_write,
    compute_at,
    fuse,
    inline,
    parallelise,
    reorder,
    rfactor,
    split,
    unroll,
    vectorise,
    write_back,
)
from tilewright.te.workload import Workload

Case = tuple[Callable[[], Workload], Callable[[Kernel], Kernel]]


def blocked(kernel: Kernel) -> Kernel:
    """Columns of a product in blocks of four, the blocks outermost."""
    return reorder(split(kernel, "j", 4, outer="jo", inner="ji"), ["jo", "i"])


def tiled(kernel: Kernel) -> Kernel:
    """The last stage of the biased product in tiles of 2 x 4, the product computed in each."""
    kernel = split(kernel, "x", 2, outer="xo", inner="xi")
    kernel = split(kernel, "y", 4, outer="yo", inner="yi")
    kernel = fuse(reorder(kernel, ["xo", "yo", "xi", "yi"]), "xo", "yo", fused="tile")
    return compute_at(kernel, "C", "tile", scope=MemoryScope.REGISTER)


def finished(kernel: Kernel) -> Kernel:
    """The tile as a sketch would leave it."""
    kernel = reorder(split(tiled(kernel), "k", 3, outer="ko", inner="ki"), ["ko", "ki", "i", "j"])
    for loop in ("i_init", "i", "xi"):
        kernel = unroll(kernel, loop)
    for loop in ("j_init", "j", "yi"):
        kernel = vectorise(kernel, loop)
    return parallelise(kernel, "tile")


def rows(kernel: Kernel) -> Kernel:
    """Softmax with one pass over the rows, the reductions in lanes."""
    for tensor, loop in (("M", "k"), ("S", "r")):
        kernel = split(kernel, loop, 8, outer=f"{loop}o", inner=f"{loop}i")
        kernel = rfactor(kernel, tensor, f"{loop}i")
    for tensor in ("S", "S_rf", "E", "M", "M_rf"):
        kernel = compute_at(kernel, tensor, "i")
    for loop in ("ki", "ri", "ki_rf", "ri_rf", "ki_combine", "ri_combine"):
        kernel = vectorise(kernel, loop)
    return parallelise(kernel, "i")


def chunks(kernel: Kernel) -> Kernel:
    """One sum on several threads, each with a vector of partial results."""
    kernel = rfactor(split(kernel, "k", 32, outer="chunk", inner="ki"), "T", "chunk", name="T_chunks")
    kernel = split(kernel, "ki", 8, outer="kio", inner="lane")
    kernel = rfactor(kernel, "T_chunks", "lane", name="T_lanes")
    kernel = compute_at(kernel, "T_lanes", "chunk_combine_2")
    kernel = parallelise(kernel, "chunk_combine_2")
    return vectorise(kernel, "lane")


CASES: dict[str, Case] = {
    "split": (workloads.elementwise, lambda k: split(k, "j", 3, outer="jo", inner="ji")),
    "split_guard": (workloads.elementwise, lambda k: split(k, "j", 4, outer="jo", inner="ji")),
    "split_peel": (workloads.product, lambda k: split(k, "j", 4, outer="jo", inner="ji", tail="peel")),
    "fuse": (workloads.elementwise, lambda k: fuse(k, "i", "j", fused="f")),
    "reorder": (workloads.product, lambda k: reorder(k, ["k", "i"])),
    "reorder_guarded": (workloads.product, blocked),
    "vectorise": (workloads.elementwise, lambda k: vectorise(k, "j")),
    "unroll": (workloads.elementwise, lambda k: unroll(k, "j")),
    "parallelise": (workloads.elementwise, lambda k: parallelise(k, "i")),
    "inline": (workloads.padded_windows, lambda k: inline(k, "P")),
    "compute_at": (workloads.neighbours, lambda k: compute_at(split(k, "i", 4, outer="io", inner="ii"), "P", "io")),
    "compute_at_reduction": (workloads.biased_product, tiled),
    "compute_at_strided": (workloads.padded_windows, lambda k: compute_at(k, "P", "j")),
    "cache_read": (workloads.product, lambda k: cache_read(blocked(k), "B", "jo")),
    "cache_write": (workloads.product, lambda k: cache_write(blocked(k), "C", "i")),
    "cache_write_partial": (workloads.product, lambda k: cache_write(reorder(blocked(k), ["k", "jo", "i"]), "C", "k")),
    "rfactor": (workloads.row_sums, lambda k: rfactor(split(k, "k", 8, outer="ko", inner="ki"), "S", "ki")),
    "rfactor_chunks": (workloads.total, chunks),
    "write_back": (workloads.product, lambda k: compute_at(write_back(k, "C"), "C_acc", "i_out")),
    "tile": (workloads.biased_product, finished),
    "rows": (workloads.softmax, rows),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    build, change = CASES[name]
    kernel = change(loop_nest(build()))
    check_golden(f"schedule/golden/{name}.txt", kernel_text(kernel))
    assert_computes(kernel, build())


def test_every_primitive_has_a_golden_file() -> None:
    assert set(PRIMITIVES) <= set(CASES)
