"""Writes the innermost loops of a nest: which are unrolled, and which becomes the lanes of a vector."""

from collections.abc import Sequence

from ....ir.buffer import MemoryScope
from .editor import LoopEditor


def mark(editor: LoopEditor, loops: Sequence[str], lane: str | None) -> None:
    """Unroll ``loops`` and vectorise ``lane``."""
    for loop in loops:
        editor.unroll(loop)
    if lane is not None:
        editor.vectorise(lane)


def split_column(editor: LoopEditor, column: str, lanes: int) -> list[str]:
    """Split the loop over columns into one over vectors and one over lanes."""
    return list(editor.split(column, lanes, f"{column}_vector", f"{column}_lane"))


def unrolled_reduction(editor: LoopEditor, loops: Sequence[str], steps: int) -> tuple[list[str], list[str]]:
    """Choose about ``steps`` iterations of the reduction ``loops`` (outermost first) to unroll, from the innermost on.
    Returns the loops that stay and those to unroll."""
    serial = list(loops)
    unrolled: list[str] = []
    while serial and steps > 1:
        last = serial.pop()
        extent = editor.extent(last)
        if extent <= steps:
            unrolled.insert(0, last)
            steps //= extent
            continue
        outer, inner = editor.split(last, steps, f"{last}_step", f"{last}_in")
        serial.append(outer)
        unrolled.insert(0, inner)
        steps = 1
    return serial, unrolled


def vector_dimension(editor: LoopEditor, loops: Sequence[str], lanes: int, vectors: int) -> None:
    """Vectorise the last of ``loops`` that has more than one iteration, ``vectors`` vectors to a step; fewer where it
    is short."""
    loop = next((loop for loop in reversed(loops) if editor.extent(loop) > 1), None)
    if loop is not None:
        vectors = max(1, min(vectors, -(-editor.extent(loop) // lanes)))
        _, rest = editor.split(loop, lanes * vectors, f"{loop}_step", f"{loop}_rest")
        vector, lane = editor.split(rest, lanes, f"{loop}_vector", f"{loop}_lane")
        mark(editor, [vector], lane)


def vector_reduction(
    editor: LoopEditor,
    tensor: str,
    inside: str | None,
    reduce_loops: Sequence[str],
    lanes: int,
    vectors: int,
    *,
    each: bool = False,
) -> None:
    """Reduce ``tensor`` into ``lanes * vectors`` partial results along the last reduction loop. ``each``: whether it
    has several elements, each of which gets its own when its turn comes."""
    last = reduce_loops[-1]
    vectors = max(1, min(vectors, -(-editor.extent(last) // lanes)))
    _, partials = editor.split(last, lanes * vectors, f"{last}_step", f"{last}_part")
    partial = editor.rfactor(tensor, partials)
    combine = editor.nests(tensor, inside)[-1]
    if each:
        inside = combine[-2]
        editor.compute_at(partial, inside, MemoryScope.REGISTER)
    start, update = editor.nests(partial, inside)
    for nest in (start, update):
        lane_loop = partials if nest is update else nest[-1]
        vector, lane = editor.split(lane_loop, lanes, f"{lane_loop}_vector", f"{lane_loop}_lane")
        mark(editor, [vector], lane)
    if editor.extent(combine[-1]) <= 256:
        editor.vectorise(combine[-1])
