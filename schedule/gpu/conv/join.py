"""Groups of few channels, joined so that a row of 128 bytes in shared memory holds the channels of several groups.

On its own, a group of 16 channels of 16 bits fills a quarter of each row that TMA loads, and its filters fill a quarter
of each row that is stored. A product of joined groups loads and stores whole rows. Its operand B is block-diagonal, but
no zero is loaded from memory or multiplied: a wgmma takes the channels and the filters of one group.

    channels of    group 0   1   2   3
    filters of 0     B0
               1          B1
               2              B2
               3                  B3
"""

from collections.abc import Mapping
from dataclasses import replace

from ....ir.expr import Expr, Load, Var
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, SWIZZLE_LINES
from ....ir.rewrite import substitute
from ...problems.gemm import Gemm, Operand, Result
from ..gemm.k_atoms import b_along_k, is_grouped
from ..gemm.mainloop import can_use_wgmma
from ..gemm.mma_atom import wgmma_atom
from ..gemm.sizes import MMA_N
from ..tma_view import merged_digits


def joinable_groups(gemm: Gemm) -> int:
    """Return how many groups fill a row of 128 bytes; 1 where they are not joined. The filters of a group must begin
    where a wgmma can begin to read. That is the beginning of a row, or a multiple of 16 in a row that they do not
    leave. Where rows are those of filters, it is every eighth row."""
    window, filters, atom = gemm.window, gemm.n.extent, wgmma_atom(gemm)
    if window is None or not is_grouped(gemm):
        return 1
    count, rest = divmod(atom.line, window.channels)
    if rest or window.channels % atom.k or gemm.batch[0].extent < count or count * filters not in MMA_N:
        return 1
    begins = filters % SWIZZLE_128B_ELEMENTS == 0 or (filters % 16 == 0 and SWIZZLE_128B_ELEMENTS % filters == 0)
    if b_along_k(gemm):
        begins = filters % SWIZZLE_LINES == 0 and atom.takes_columns(filters)
    return count if begins and can_use_wgmma(join_groups(gemm, count)) else 1


def join_groups(gemm: Gemm, count: int) -> Gemm:
    """Return the product with ``count`` groups in the place of each: ``n`` goes through the filters of all of them. The
    last ones may be fewer: there are no results of others, and TMA brings zeros for them."""
    window, group = gemm.window, gemm.batch[0]
    assert window is not None and gemm.a.load is not None and gemm.b.load is not None
    joined = Var(group.name)
    number = joined * count + Var("n") // gemm.n.extent
    at: Mapping[str, Expr] = {group.name: number, "n": Var("n") % gemm.n.extent}
    exists = (number < group.extent,) if group.extent % count else ()
    wider = replace(window, channels=count * window.channels, joined_groups=count)
    image = Load(gemm.a.load.buffer, (*gemm.a.load.indices[:-1], joined * wider.channels + Var("k")))

    filters = substitute(gemm.b.load, at)
    assert isinstance(filters, Load)
    filters = merged_digits(filters, "n") if exists else filters
    results = tuple(
        Result(
            r.tensor,
            tuple(substitute(i, at) for i in r.indices),
            substitute(r.value, at),
            (*(substitute(i, at) for i in r.inside), *exists),
        )
        for r in gemm.results
    )
    return replace(
        gemm,
        a=Operand(image, image, 0, 1),
        b=Operand(filters, filters, 0, 0),
        n=replace(gemm.n, extent=count * gemm.n.extent),
        batch=(replace(group, extent=-(-group.extent // count)), *gemm.batch[1:]),
        results=results,
        window=wider,
    )
