"""Reduces overlapping windows with few steps: neighbours share the reductions of the parts that they have in common.

A window of 7 points takes its greatest from those of two windows of 4, each of which has it from two of 2. The windows
of 2 and 4 are shared, so that each output takes 3 steps instead of 6. A sum has no part twice: it adds windows of 4, 2
and 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.expr import BinaryOp

Part = tuple[int, int]
"""The first position and the number of points of a window, or of a part of one."""


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """How to reduce windows. ``steps``: each part with the two that it is combined of, after these. ``windows``: the
    parts that are the windows. A part of one point is a position."""

    steps: tuple[tuple[Part, Part, Part], ...]
    windows: tuple[Part, ...]


def window_steps(starts: Sequence[int], points: int, dilation: int, combine: BinaryOp) -> WindowSteps:
    """Return how to reduce the windows of ``points`` positions, ``dilation`` apart, that begin at ``starts``. The
    greatest and the least of positions stay what they are where a position is combined twice."""
    choices = (False, True) if combine in (BinaryOp.MIN, BinaryOp.MAX) else (False,)
    return min((_steps(starts, points, dilation, twice=t) for t in choices), key=lambda found: len(found.steps))


def _steps(starts: Sequence[int], points: int, dilation: int, *, twice: bool) -> WindowSteps:
    steps: dict[Part, tuple[Part, Part, Part]] = {}

    def visit(first: int, count: int) -> Part:
        part = (first, count)
        if count > 1 and part not in steps:
            half = 1 << ((count - 1).bit_length() - 1)
            rest = half if twice else count - half
            steps[part] = (part, visit(first, half), visit(first + (count - rest) * dilation, rest))
        return part

    windows = tuple(visit(start, points) for start in starts)
    return WindowSteps(tuple(steps.values()), windows)
