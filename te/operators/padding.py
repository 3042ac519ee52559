"""A border around some dimensions of a tensor, and zeros between its elements."""

from collections.abc import Mapping

from ...ir.expr import Expr
from ..build import Tensor, all_of, compute, constant, equal, select


def padded(
    x: Tensor,
    widths: Mapping[int, tuple[int, int]],
    value: float = 0,
    name: str = "padded",
    steps: Mapping[int, int] | None = None,
) -> Tensor:
    """``x`` with elements of ``value`` along dimensions d, ``widths[d]`` = (before, behind) of them, and with
    ``steps[d] - 1`` between neighbours; ``x`` itself where there are none. It is a stage of nothing but a select:
    schedules store it or, since that repeats no arithmetic, put it into its readers."""
    apart = {d: step for d, step in (steps or {}).items() if step > 1 and x.shape[d] > 1}
    if not apart and not any(before or behind for before, behind in widths.values()):
        return x
    spans = [(extent - 1) * apart.get(d, 1) + 1 for d, extent in enumerate(x.shape)]
    shape = tuple(span + sum(widths.get(d, (0, 0))) for d, span in enumerate(spans))

    def body(*at: Expr) -> Expr:
        inside = []
        for d, (before, behind) in widths.items():
            inside += [at[d] >= before] if before else []
            inside += [at[d] < spans[d] + before] if behind else []
        moved = [i - widths[d][0] if widths.get(d, (0, 0))[0] else i for d, i in enumerate(at)]
        for d, step in apart.items():
            inside.append(equal(moved[d] % step, 0))
            moved[d] = moved[d] // step
        return select(all_of(*inside), x[tuple(moved)], constant(value, x.dtype))

    return compute(shape, body, name)
