"""Reads the line information that NVRTC (``-lineinfo``) and nvdisasm (``-gp``) give.

In PTX, ``.loc 1 34 3, function_name f, inlined_at 1 80 5`` says that what follows comes from line 34 of a function that
was inlined at line 80. Both lines are origins. Where line 80 was inlined itself, an earlier ``.loc`` of it says where.

In SASS, ``//## File ".nv_debug_ptx_txt", line 44`` names a line of the PTX. The assembler gives ``HGMMA`` no line, so
that nvdisasm shows that of the instruction before it. Products of warpgroups keep their order, and where there are as
many as in the PTX, each belongs to the ``wgmma`` of its number.

Source: "PTX ISA", section ".loc"; "CUDA Binary Utilities", nvdisasm.
"""

import re
from collections.abc import Iterator

from ...line_origins import LineOrigins, transferred

_PLACE = r"\d+\s+(\d+)\s+(\d+)"
_LOC = re.compile(rf"\s*\.loc\s+{_PLACE}(?:,.*inlined_at\s+{_PLACE})?")
_PTX_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt", line (\d+)')


def ptx_origins(ptx: str, annotated: str) -> LineOrigins:
    """Return the lines of the source that each line of ``ptx`` comes from; ``annotated`` is the PTX of a compilation
    with line information."""
    return transferred(ptx, _annotated_ptx(annotated))


def sass_origins(ptx: str, annotated_ptx: str, sass: str, annotated: str) -> LineOrigins:
    """Return the lines of ``ptx`` that each line of ``sass`` comes from; ``annotated_ptx`` and ``annotated`` are those
    of a compilation with line information."""
    numbers = transferred(ptx, ((line, (n,)) for n, line in enumerate(annotated_ptx.splitlines(), start=1)))
    plain = {annotated: n for n, (annotated,) in enumerate(numbers, start=1)}
    found = list(transferred(sass, _annotated_sass(annotated, plain)) if plain else ())
    products = [n for n, line in enumerate(ptx.splitlines(), start=1) if "wgmma.mma_async" in line]
    instructions = [n for n, line in enumerate(sass.splitlines()) if "GMMA." in line]
    if found and len(products) == len(instructions):
        for instruction, product in zip(instructions, products, strict=True):
            found[instruction] = (product,)
    return tuple(found)


def without_lines(sass: str) -> str:
    """Return SASS without what nvdisasm says of lines."""
    return "".join(line for line in sass.splitlines(keepends=True) if not line.lstrip().startswith("//##"))


def _annotated_ptx(ptx: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    here: tuple[int, ...] = ()
    inlined: dict[tuple[str, str], tuple[int, ...]] = {}  # a place in an inlined function -> the lines of its callers
    for line in ptx.splitlines():
        place = _LOC.match(line)
        if place is None:
            is_instruction = line.startswith(("\t", "@")) and not line.lstrip().startswith((".", "//"))
            yield line, here if is_instruction else ()
            continue
        number, column, outer, outer_column = place.groups()
        callers: tuple[int, ...] = ()
        if outer is not None:
            callers = (int(outer), *inlined.get((outer, outer_column), ()))
            inlined[number, column] = callers
        here = tuple(n for n in (int(number), *callers) if n)


def _annotated_sass(sass: str, plain: dict[int, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    here: tuple[int, ...] = ()
    for line in sass.splitlines():
        place = _PTX_LINE.match(line)
        if place is not None:
            number = plain.get(int(place.group(1)))
            here = () if number is None else (number,)
            continue
        yield line, here if "/*" in line else ()
