"""What the page of a kernel's layers is made of: the columns that are shown, and where one line is found at every
layer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..service.views import Explanation, Section

MOST_SHOWN = 3
"""How many layers are shown side by side."""
MOST_TRACED = 4
"""How many lines of a layer are quoted where a line is followed through the layers."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """What a line is at one layer. ``texts`` quotes the first of the lines ``numbers``."""

    index: int
    title: str
    numbers: tuple[int, ...]
    texts: tuple[str, ...]
    is_own: bool

    @property
    def ranges(self) -> str:
        """Write the numbers, neighbours as a range: ``3–5, 9``."""
        runs: list[tuple[int, int]] = []
        for number in self.numbers:
            if runs and runs[-1][1] == number - 1:
                runs[-1] = (runs[-1][0], number)
            else:
                runs.append((number, number))
        shown = [str(a) if a == b else f"{a}–{b}" for a, b in runs[:6]]
        return ", ".join(shown) + (" …" if len(runs) > 6 else "")


class LinkedLayers:
    """The layers of an explanation whose lines are linked, from the expression down.

    A line comes from all of its origins. Where several were inlined into one another (a function of the prelude and the
    place that calls it), it comes only from what they have in common further up.
    """

    def __init__(self, sections: Sequence[Section]) -> None:
        above = {s.above for s in sections}
        self.layers = [s for s in sections if s.above is not None or s.title in above]
        self.lines = [[_SASS.sub(r"\1  ", line) for line in s.text.splitlines()] for s in self.layers]

    @cached_property
    def _ancestors(self) -> list[list[tuple[frozenset[int], ...]]]:
        """For each layer and line: the lines that it comes from, one layer up, two layers up, …"""
        found: list[list[tuple[frozenset[int], ...]]] = []
        for depth, (layer, lines) in enumerate(zip(self.layers, self.lines, strict=True)):
            origins = layer.origins or ((),) * len(lines)
            rows = [self._joined(own, depth, found) for own in origins]
            found.append(rows)
        return found

    @staticmethod
    def _joined(
        own: Sequence[int], depth: int, found: Sequence[Sequence[tuple[frozenset[int], ...]]]
    ) -> tuple[frozenset[int], ...]:
        if depth == 0:
            return ()
        levels = [frozenset(own)]
        for level in range(depth - 1):
            sets = [found[depth - 1][n - 1][level] for n in own]
            levels.append(frozenset.intersection(*sets) or frozenset.union(*sets) if sets else frozenset())
        return tuple(levels)

    def related(self, layer: int, line: int) -> list[frozenset[int]]:
        """Return for every layer the lines that one line, counted from 1, comes from or became."""
        ancestors = self._ancestors
        result = [frozenset[int]()] * len(self.layers)
        result[layer] = frozenset({line})
        for level, numbers in enumerate(ancestors[layer][line - 1], start=1):
            result[layer - level] = numbers
        for below in range(layer + 1, len(self.layers)):
            rows = enumerate(ancestors[below], start=1)
            result[below] = frozenset(n for n, levels in rows if line in levels[below - layer - 1])
        return result

    def trace(self, layer: int, line: int) -> tuple[TraceRow, ...]:
        """Return where a line is found at every layer, from the expression down."""
        rows = []
        for index, numbers in enumerate(self.related(layer, line)):
            ordered = tuple(sorted(numbers))
            quoted = ordered[-MOST_TRACED:] if self.tells_most_last(index) else ordered[:MOST_TRACED]
            texts = tuple(self.lines[index][n - 1].strip() for n in quoted)
            rows.append(TraceRow(index, self.title(index), ordered, texts, index == layer))
        return tuple(rows)

    def title(self, index: int) -> str:
        """Return what a layer is called on the page."""
        layer = self.layers[index]
        return _LANGUAGES.get(layer.language, _TITLES.get(layer.title, layer.title))

    def tells_most_last(self, index: int) -> bool:
        """Return whether the last of some lines tell most: loops stand ahead of what they run, and functions ahead of
        what calls them."""
        return self.layers[index].language in ("ir", "cuda-c++")

    def default_shown(self) -> tuple[int, ...]:
        """Return the layers that are shown first: the IR that is emitted, the source, the machine instructions."""
        last = len(self.layers) - 1
        source = next((n for n, s in enumerate(self.layers) if s.title == "source"), last)
        return tuple(dict.fromkeys((source - 1, source, last)))

    def default_line(self) -> tuple[int, int]:
        """Return the line that is followed first: of the IR that is emitted, the first matrix operation, or else the
        first of the lines that are nested most deeply."""
        layer = self.default_shown()[0]
        lines = self.lines[layer]
        product = next((n for n, line in enumerate(lines, start=1) if "mma(" in line), None)
        deepest = max(range(len(lines)), key=lambda n: len(lines[n]) - len(lines[n].lstrip()))
        return layer, product or deepest + 1

    def to_json(self, shown: Sequence[int]) -> list[Mapping[str, object]]:
        """Return what the script needs: titles and origins, and the text of layers that are not in the page."""
        return [
            {
                "title": self.title(n),
                "origins": s.origins,
                "lines": None if n in shown else self.lines[n],
                "tellsMostLast": self.tells_most_last(n),
            }
            for n, s in enumerate(self.layers)
        ]


_SASS = re.compile(r"^ +(/\*[0-9a-f]{4,}\*/) {3,}")
"""The wide margins of disassembled instructions, of which the page leaves two spaces."""
_LANGUAGES = {"llvm-ir": "LLVM IR", "cuda-c++": "CUDA C++"}
_TITLES = {"kernel": "IR of the sketch"}


@dataclass(frozen=True, slots=True)
class MatrixStep:
    """Matrix operations of one layer. ``is_lost`` marks the first layer that has none though the one above has."""

    title: str
    count: int
    is_lost: bool


def matrix_steps(explanation: Explanation) -> tuple[MatrixStep, ...]:
    """Return the matrix operations from layer to layer."""
    layers = explanation.matrix_layers
    languages = {s.title: s.language for s in explanation.sections}
    names = [_LANGUAGES.get(languages[t], _TITLES.get(t, t)) for t in (layer.title for layer in layers)]
    lost = next((n for n in range(1, len(layers)) if layers[n - 1].count and not layers[n].count), None)
    return tuple(
        MatrixStep(name, layer.count, n == lost) for n, (name, layer) in enumerate(zip(names, layers, strict=True))
    )
