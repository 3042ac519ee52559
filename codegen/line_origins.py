"""Which line of one form of a kernel comes from which lines of the form above it.

Compilers are asked for line information apart from the compilation whose result is shown and timed. Both give the same
instructions; the annotated text has further lines between them. Where it does not, nothing is said about origins.
"""

from collections.abc import Iterable, Sequence

LineOrigins = tuple[tuple[int, ...], ...]
"""For each line of a text: the lines of the text above that it comes from, counted from 1. Nothing is known of a line
with none."""


def transferred(plain: str, annotated: Iterable[tuple[str, Sequence[int]]]) -> LineOrigins:
    """Return the origins of the lines of ``plain``. ``annotated`` has the same lines in the same order, each with its
    origins, and may have others between them. Return no origins at all where a line of ``plain`` is missing there."""
    rest = iter(annotated)
    found: list[tuple[int, ...]] = []
    for line in plain.splitlines():
        origins = next((tuple(dict.fromkeys(o)) for text, o in rest if text == line), None)
        if origins is None:
            return ()
        found.append(origins)
    return tuple(found)
