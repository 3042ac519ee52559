"""Flat indices taken apart into one index for each axis, as kernels do with the numbers of threads and blocks."""

from collections.abc import Mapping, Sequence

from ...ir.expr import Expr, index
from ...te.workload import Axis


def delinearize(flat: Expr, extents: Sequence[int]) -> tuple[Expr, ...]:
    """Return the row-major indices along axes of ``extents`` of the flat index ``flat``, which is below their product.

    The last axis is the fastest. Axes of extent 1 get the index 0.
    """
    indices: list[Expr] = []
    rest = flat
    long_axes = [n for n, extent in enumerate(extents) if extent > 1]
    for n in reversed(range(len(extents))):
        if extents[n] == 1:
            indices.append(index(0))
        elif n == long_axes[0]:
            indices.append(rest)
        else:
            indices.append(rest % extents[n])
            rest = rest // extents[n]
    return tuple(reversed(indices))


def axis_indices(flat: Expr, axes: Sequence[Axis]) -> Mapping[str, Expr]:
    """Axis name -> its index, for the flat index ``flat`` into ``axes`` (see ``delinearize``)."""
    return dict(zip((a.name for a in axes), delinearize(flat, [a.extent for a in axes]), strict=True))
