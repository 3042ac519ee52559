"""What a primitive refuses, and that it says which argument was wrong, what was given and what is allowed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.schedule.primitives import workloads
from tilewright.core.errors import IllegalSchedule
from tilewright.ir.buffer import MemoryScope
from tilewright.ir.expr import Const, Expr, Var
from tilewright.ir.rewrite import map_statements
from tilewright.ir.stmt import If, Kernel, Stmt, Store
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.schedule.primitives import (
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
from tilewright.te import build as te

PRODUCT = loop_nest(workloads.product())
BIASED = loop_nest(workloads.biased_product())
BIASED_K = reorder(BIASED, ["k", "i"])
SOFTMAX = loop_nest(workloads.softmax())
TWO_OUTPUTS = loop_nest(workloads.two_outputs())


def triangle() -> Kernel:
    """The product, summed only where j + k < 7."""

    def cut(stmt: Stmt) -> Stmt:
        accumulates = isinstance(stmt, Store) and not isinstance(stmt.value, Const)
        return If(Var("j") + Var("k") < 7, stmt) if accumulates else stmt

    return replace(PRODUCT, body=map_statements(PRODUCT.body, cut))


REFUSED: list[tuple[str, Callable[[], Kernel], str, str]] = [
    (
        "split no loop",
        lambda: split(PRODUCT, "z", 4, outer="a", inner="b"),
        "loop",
        "there are: i_init, j_init, i, j, k",
    ),
    ("split zero", lambda: split(PRODUCT, "j", 0, outer="a", inner="b"), "factor", "factor is 0; allowed: 1 and more"),
    (
        "peel too wide",
        lambda: split(PRODUCT, "j", 7, outer="a", inner="b", tail="peel"),
        "factor",
        "factor is 7; allowed: 1 to 6, the extent of 'j'",
    ),
    ("split taken", lambda: split(PRODUCT, "j", 2, outer="i", inner="b"), "outer", "outer is 'i'"),
    ("split twice", lambda: split(PRODUCT, "j", 2, outer="b", inner="b"), "inner", "inner is 'b'"),
    ("split marked", lambda: split(unroll(PRODUCT, "j"), "j", 2, outer="a", inner="b"), "loop", "which is unrolled"),
    (
        "fuse apart",
        lambda: fuse(PRODUCT, "i", "k", fused="f"),
        "inner",
        "directly inside 'i', where there is the loop 'j'",
    ),
    ("fuse twisted", lambda: fuse(PRODUCT, "j", "i", fused="f"), "inner", "where there is the loop 'k'"),
    ("fuse taken", lambda: fuse(PRODUCT, "i", "j", fused="k"), "fused", "a loop or buffer has that name"),
    ("reorder twice", lambda: reorder(PRODUCT, ["i", "i"]), "loops", "each once"),
    ("reorder apart", lambda: reorder(PRODUCT, ["i_init", "i"]), "loops", "there is a Store"),
    (
        "vectorise row",
        lambda: vectorise(loop_nest(workloads.total(1000)), "k"),
        "loop",
        "1000 iterations; allowed: at most 256",
    ),
    (
        "vectorise inside",
        lambda: vectorise(vectorise(PRODUCT, "k"), "j"),
        "loop",
        "which holds the vectorized loop 'k'",
    ),
    ("vectorise around", lambda: vectorise(vectorise(PRODUCT, "j_init"), "j_init"), "loop", "which is vectorized"),
    (
        "unroll long",
        lambda: unroll(loop_nest(workloads.total(1000)), "k"),
        "loop",
        "1000 iterations; allowed: at most 256",
    ),
    ("parallel sum", lambda: parallelise(PRODUCT, "k"), "loop", "may touch the same elements of 'C'"),
    ("parallel inside", lambda: parallelise(parallelise(PRODUCT, "i"), "j"), "loop", "inside the parallel loop 'i'"),
    ("parallel around", lambda: parallelise(parallelise(PRODUCT, "j"), "i"), "loop", "holds the parallel loop 'j'"),
    ("inline output", lambda: inline(PRODUCT, "C"), "tensor", "an output"),
    ("inline input", lambda: inline(PRODUCT, "A"), "tensor", "does not compute; it computes: C"),
    ("inline sum", lambda: inline(BIASED, "C"), "tensor", "no reduction"),
    (
        "inline split",
        lambda: inline(split(SOFTMAX, "b1", 4, outer="a", inner="b"), "E"),
        "tensor",
        "before its nest is changed",
    ),
    ("move output", lambda: compute_at(PRODUCT, "C", "i"), "tensor", "an output"),
    ("move into itself", lambda: compute_at(BIASED, "C", "i"), "loop", "belongs to the tensor's own nest"),
    (
        "move from other reads",
        lambda: compute_at(SOFTMAX, "E", "i"),
        "loop",
        "also read outside that loop, in the loops c0, r",
    ),
    (
        "move twice",
        lambda: compute_at(compute_at(BIASED, "C", "x"), "C", "x"),
        "loop",
        "computed inside that loop already",
    ),
    ("move to lanes", lambda: compute_at(vectorise(BIASED, "y"), "C", "y"), "loop", "a vectorised loop"),
    (
        "move to global",
        lambda: compute_at(BIASED, "C", "x", scope=MemoryScope.GLOBAL),
        "scope",
        "allowed: local, register",
    ),
    (
        "move split",
        lambda: compute_at(split(BIASED, "i", 2, outer="a", inner="b"), "C", "x"),
        "tensor",
        "split, fuse and mark them after moving",
    ),
    (
        "move gathered",
        lambda: compute_at(cache_write(BIASED_K, "C", "k"), "C", "x"),
        "tensor",
        "use cache_write after moving",
    ),
    (
        "rfactor without start",
        lambda: rfactor(cache_write(BIASED_K, "C", "k"), "C_k", "j"),
        "loop",
        "not over one of its dimensions",
    ),
    (
        "rfactor gathered",
        lambda: rfactor(
            cache_write(split(reorder(PRODUCT, ["k", "i"]), "k", 2, outer="ko", inner="ki"), "C", "ko"), "C_ko", "ki"
        ),
        "tensor",
        "use rfactor before compute_at and cache_write",
    ),
    ("move parallel", lambda: compute_at(parallelise(BIASED, "i"), "C", "x"), "tensor", "parallelise after moving"),
    ("read elsewhere", lambda: cache_read(PRODUCT, "A", "i_init"), "tensor", "is not read inside 'i_init'"),
    ("read what is written", lambda: cache_read(PRODUCT, "C", "i"), "tensor", "is written inside 'i'"),
    (
        "read global",
        lambda: cache_read(PRODUCT, "A", "i", scope=MemoryScope.GLOBAL),
        "scope",
        "allowed: local, register",
    ),
    ("read in lanes", lambda: cache_read(vectorise(PRODUCT, "j"), "A", "j"), "loop", "'j' is vectorised"),
    ("write elsewhere", lambda: cache_write(BIASED, "C", "x"), "loop", "this one holds 0"),
    (
        "write mixed",
        lambda: cache_write(triangle(), "C", "i"),
        "loop",
        "mixes dimensions of the tensor with others",
    ),
    ("read local", lambda: cache_read(compute_at(BIASED, "C", "x"), "C", "x"), "tensor", "is written inside"),
    ("read deep local", lambda: cache_read(compute_at(BIASED, "C", "x"), "C", "y"), "tensor", "allowed: global"),
    ("rfactor dimension", lambda: rfactor(PRODUCT, "C", "j"), "loop", "not over one of its dimensions"),
    ("rfactor other nest", lambda: rfactor(PRODUCT, "C", "j_init"), "loop", "a loop of the nest that accumulates"),
    ("rfactor taken", lambda: rfactor(PRODUCT, "C", "k", name="A"), "name", "name is 'A', which is taken"),
    ("write back input", lambda: write_back(PRODUCT, "A"), "tensor", "does not compute"),
    ("write back taken", lambda: write_back(PRODUCT, "C", name="j"), "name", "name is 'j', which is taken"),
    (
        "write back local",
        lambda: write_back(compute_at(BIASED, "C", "x"), "C"),
        "tensor",
        "in local scope; allowed: global",
    ),
]


@pytest.mark.parametrize(("change", "field", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(change: Callable[[], Kernel], field: str, message: str) -> None:
    with pytest.raises(IllegalSchedule) as caught:
        change()
    assert caught.value.field == field
    assert message in caught.value.message


def test_read_in_one_nest_of_several() -> None:
    """A tensor read by two outputs cannot move into one of them."""
    with pytest.raises(IllegalSchedule, match="also read outside that loop"):
        compute_at(TWO_OUTPUTS, "P", "i")


def test_the_given_kernel_stays() -> None:
    before = loop_nest(workloads.biased_product())
    compute_at(split(BIASED, "x", 2, outer="xo", inner="xi"), "C", "xo")
    assert before == BIASED


def _squared(tensor: te.Tensor) -> Callable[[Expr], Expr]:
    return lambda i: tensor[i] * tensor[i]


def test_growth_is_bounded() -> None:
    """Each stage reads the one before it twice: inlined, expressions double each time."""
    a = te.placeholder((4,), name="A")
    last = a
    for n in range(16):
        last = te.compute((4,), _squared(last), name=f"P{n}")
    kernel = loop_nest(te.workload([last]))
    with pytest.raises(IllegalSchedule, match="nodes, allowed are 20000"):
        for n in range(15):
            kernel = inline(kernel, f"P{n}")
