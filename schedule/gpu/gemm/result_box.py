"""What a TMA store writes of an output: the 64 rows of a wgmma atom as a box of the tensor. It also says which outputs
can be stored by TMA, and which as staged rows.

Rows of a matrix are neighbours along one dimension, as TMA sees the tensor. Rows that are a patch of output pixels take
several dimensions.
"""

from dataclasses import dataclass

from ....ir.buffer import Buffer
from ....ir.expr import Expr, Load, Var
from ....ir.gpu.wgmma import LINE_BYTES, WGMMA_M
from ....ir.rewrite import free_variables, loads_of
from ...problems.gemm import Gemm, Result
from ..tma_view import in_slices, is_along, merged_digits, moved_dimensions, tma_view
from .k_atoms import joined_groups

VECTOR_BYTES = 16
"""Bytes of the widest access of a thread."""


@dataclass(frozen=True, slots=True)
class ResultBox:
    """``tensor[indices]`` on the axes of the product. ``rows``: how many places of each dimension the rows of an atom
    take. The last dimension is ``n``. Where it is ``m``, they say 64 for the dimension that is ``n``."""

    tensor: Buffer
    indices: tuple[Expr, ...]
    rows: tuple[int, ...]

    def extents(self, columns: int, parts: int = 1) -> tuple[int, ...]:
        """Return the extents of a box of so many columns, of one of ``parts`` parts of the rows, if they are
        neighbours."""
        outer, inner = (columns, WGMMA_M) if self.indices[-1] == Var("m") else (WGMMA_M // parts, columns)
        return (*(outer if n == WGMMA_M else n for n in self.rows[:-1]), inner)


@dataclass(frozen=True, slots=True)
class LineBox:
    """The rows of an atom that fill whole lines of memory: ``tensor`` as (lines, elements of a line), and the extents
    of the box. A row that ends within a sector would write a part of it."""

    tensor: Buffer
    rows: tuple[int, int]


def result_box(gemm: Gemm, result: Result) -> ResultBox | None:
    """Return how TMA stores ``result``; None where it cannot. It stores floats of 16 bits and what has 32, ``m`` before
    ``n``, in rows at multiples of 16 bytes. Floats of 16 bits may have ``n`` before ``m``."""
    given = Load(result.tensor, result.indices)
    given = merged_digits(given, "n") if joined_groups(gemm) > 1 and result.inside else given
    patch = () if gemm.window is None else gemm.window.patch
    outer, inner = ("n", "m") if gemm.along_m and gemm.window is None else ("m", "n")
    if gemm.window is not None and patch:
        positions = gemm.window.position(Var("m"))
        view, places = tma_view(given, len(patch)), {positions[n]: patch[n] for n in gemm.window.patch_order}
        along_m = [i for i in places if "m" in free_variables(i)]
        if gemm.window.halo is not None and all(i in view.indices for i in along_m):
            view = moved_dimensions(view, tuple(view.indices.index(i) for i in along_m))
    else:
        for axis in gemm.batch if gemm.window is None else ():
            given = in_slices(given, axis, gemm.m if outer == "m" else gemm.n)
        view, places = tma_view(given), {Var(outer): WGMMA_M}
    tensor, indices = view.buffer, view.indices
    staged = (tensor.dtype.bits == 32 and inner == "n") or (tensor.dtype.bits == 16 and tensor.dtype.is_float)
    if not staged or not 2 <= len(tensor.shape) <= 5:
        return None
    along = [i for i in indices if outer in free_variables(i)]
    if along != [i for i in places if i in indices and outer in free_variables(i)]:
        return None
    if indices[-1] != Var(inner) and not (joined_groups(gemm) > 1 and is_along(indices[-1], inner)):
        return None
    if any(inner in free_variables(i) for i in indices[:-1]) or not along:
        return None
    rows = tuple(places.get(i, 1) for i in indices)
    taken = 1
    for extent in rows:
        taken *= extent
    aligned = all(stride * tensor.dtype.bytes % 16 == 0 for stride in tensor.strides[:-1])
    return ResultBox(tensor, indices, rows) if aligned and taken == WGMMA_M else None


def line_box(gemm: Gemm, box: ResultBox, columns: int) -> LineBox | None:
    """Return how TMA stores 64 rows of ``columns`` columns as whole lines; None where rows are not shorter than lines,
    or do not follow one another."""
    tensor = box.tensor
    line = LINE_BYTES // tensor.dtype.bytes
    follow = len(tensor.shape) == 2 and box.rows[0] == WGMMA_M and tensor.strides == (columns, 1)
    if not follow or gemm.dynamic is not None or columns >= line or tensor.elements % line:
        return None
    lines = Buffer(tensor.name, (tensor.elements // line, line), tensor.dtype, tensor.scope)
    return LineBox(lines, (WGMMA_M * columns // line, line))


def can_store_by_tma(gemm: Gemm) -> bool:
    """Return whether TMA can store all results: of one type of 16 or 32 bits, ``m`` before ``n``, or of 16 bits and
    ``n`` before ``m``, rows at multiples of 16 bytes."""
    first = gemm.results[0].tensor.dtype
    return gemm.stored and all(result_box(gemm, r) is not None and r.tensor.dtype == first for r in gemm.results)


def can_store_staged_rows(gemm: Gemm) -> bool:
    """Return whether all results can be stored row by row from where they are staged: 16-bit, of one type, along ``n``
    or along pixels. What is read for each row is read for all of them."""
    even = gemm.n.extent % 2 == 0
    return all(
        r.tensor.dtype.name in ("float16", "bfloat16")
        and r.tensor.dtype == gemm.results[0].tensor.dtype
        and (_has_pixel_vectors(gemm, r) if gemm.along_pixels else r.step("n") == 1)
        and (even or not reads_sources(gemm, r))
        and not (r.inside and _reads_rows(gemm, r))
        for r in gemm.results
    )


def _has_pixel_vectors(gemm: Gemm, result: Result) -> bool:
    """Return whether as many rows as a vector has, from a multiple of that on, are pixels side by side in a result,
    which begin at a multiple of 16 bytes."""
    width, window = VECTOR_BYTES // result.tensor.dtype.bytes, gemm.window
    assert window is not None
    extents = [window.positions[-1], *window.patch[-1:], *result.tensor.strides[:-1]]
    in_order = not window.patch or window.patch_order[-1] == len(window.positions)
    apart = result.last_digit > 0 or result.phases > 1
    return in_order and all(n % width == 0 for n in extents) and not (apart or result.inside)


def stores_pairs_of_rows(gemm: Gemm) -> bool:
    """Return whether two neighbouring rows, from an even one on, are neighbours in all results, and aligned."""
    return gemm.m.extent % 2 == 0 and all(
        r.indices[-1] == Var("m") and not r.inside and all(step % 2 == 0 for step in r.tensor.strides[:-1])
        for r in gemm.results
    )


def reads_sources(gemm: Gemm, result: Result) -> bool:
    """Return whether a result reads more than the accumulators."""
    return any(load.buffer.name not in gemm.accumulators for load in loads_of(result.value))


def _reads_rows(gemm: Gemm, result: Result) -> bool:
    """Return whether a result reads more than the accumulators that is not the same for all rows."""
    sources = (load for load in loads_of(result.value) if load.buffer.name not in gemm.accumulators)
    return any("m" in free_variables(load) for load in sources)
