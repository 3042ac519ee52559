"""A border around some dimensions of a tensor."""

from collections.abc import Mapping

from ...ir.expr import Expr
from ..build import Tensor, all_of, compute, constant, select


def padded(x: Tensor, widths: Mapping[int, tuple[int, int]], value: float = 0, name: str = "padded") -> Tensor:
    """``x`` with elements of ``value`` along dimensions d, ``widths[d]`` = (before, behind) of them; ``x`` itself where
    there are none. It is a stage of nothing but a select: schedules store it or, since that repeats no arithmetic, put
    it into its readers."""
    if not any(before or behind for before, behind in widths.values()):
        return x
    shape = tuple(extent + sum(widths.get(d, (0, 0))) for d, extent in enumerate(x.shape))

    def body(*at: Expr) -> Expr:
        inside = []
        for d, (before, behind) in widths.items():
            inside += [at[d] >= before] if before else []
            inside += [at[d] < x.shape[d] + before] if behind else []
        moved = [i - widths[d][0] if widths.get(d, (0, 0))[0] else i for d, i in enumerate(at)]
        return select(all_of(*inside), x[tuple(moved)], constant(value, x.dtype))

    return compute(shape, body, name)
