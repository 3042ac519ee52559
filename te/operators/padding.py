"""A border around some dimensions of a tensor."""

from collections.abc import Mapping

from ...ir.expr import Expr
from ..build import Tensor, all_of, compute, constant, select


def padded(x: Tensor, widths: Mapping[int, int], value: float = 0, name: str = "padded") -> Tensor:
    """``x`` with ``widths[d]`` elements of ``value`` before and behind each dimension d in ``widths``, as a stage of
    nothing but a select: schedules store it or, since reading it again is cheap, put it into its readers."""
    shape = tuple(extent + 2 * widths.get(d, 0) for d, extent in enumerate(x.shape))

    def body(*at: Expr) -> Expr:
        inside = [c for d, width in widths.items() for c in (at[d] >= width, at[d] < x.shape[d] + width)]
        moved = [i - widths[d] if d in widths else i for d, i in enumerate(at)]
        return select(all_of(*inside), x[tuple(moved)], constant(value, x.dtype))

    return compute(shape, body, name)
