"""What ``cuda_gemm_simt`` combines for each place of k."""

from collections.abc import Mapping

from ....ir.expr import Const, Expr, Load, const
from ....ir.rewrite import loads_of, map_loads, substitute
from ....ir.simplify import simplify
from ....te.workload import Reducer
from ...problems.gemm import Gemm
from ..peaks import GpuPeaks
from ..term_cost import TermCost, reduction_cost


def term_of(gemm: Gemm, a: Load, b: Load, at: Mapping[str, Expr]) -> Expr:
    """Return what is reduced at one place of k, of the elements ``a`` and ``b`` there. ``at``: the place in the
    product, by axis."""
    if gemm.term is None:
        return a * b
    held = {gemm.b.body: b, gemm.a.body: a}
    return map_loads(gemm.term, lambda load: held[load] if load in held else substitute(load, at))


def zeros_are_neutral(gemm: Gemm) -> bool:
    """Return whether zeros in place of both operands change no accumulator, and nothing else is read."""
    if gemm.term is None:
        return True
    if not {gemm.a.body, gemm.b.body}.issuperset(loads_of(gemm.term)):
        return False
    value = simplify(map_loads(gemm.term, lambda load: const(0, load.dtype)), {})
    return gemm.reducer is Reducer.SUM and isinstance(value, Const) and value.value == 0


def term_cost(gemm: Gemm, peaks: GpuPeaks) -> TermCost:
    """Return what the combination of an accumulator with a term takes."""
    a, b = gemm.a.load, gemm.b.load
    assert a is not None and b is not None
    return reduction_cost(gemm.reducer, term_of(gemm, a, b, {}), gemm.accumulator.dtype, peaks)
