"""Reduces overlapping windows with few steps: neighbours share the reductions of the parts that they have in common.

A window of 7 points takes its greatest from those of two windows of 4, each of which has it from two of 2. The windows
of 2 and 4 are shared, so that each output takes 3 steps instead of 6. A sum has no part twice: it adds windows of 4, 2
and 1. Where several windows have a part in common, each is that part with what comes ahead of it and what follows, both
of which grow from window to window: 7 such windows take 17 steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...ir.expr import BinaryOp
from ..space.columns import Ints
from .window_overlap import WindowAxis

Part = tuple[int, int]
"""The first position and the number of points of a window, or of a part of one."""


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """How to reduce windows. ``steps``: each part with the two that it is combined of, after these. ``windows``: the
    parts that are the windows. A part of one point is a position."""

    steps: tuple[tuple[Part, Part, Part], ...]
    windows: tuple[Part, ...]


def window_steps(starts: Sequence[int], points: int, dilation: int, combine: BinaryOp) -> WindowSteps:
    """Return how to reduce the windows of ``points`` positions, ``dilation`` apart, that begin at ``starts``, an
    ascending sequence. The greatest and the least of positions stay what they are where a position is combined
    twice."""
    choices = (False, True) if combine in (BinaryOp.MIN, BinaryOp.MAX) else (False,)
    found = [_by_doubling(starts, points, dilation, twice=t) for t in choices]
    if points > 2:
        found += [_around_common_parts(starts, points, dilation, most) for most in range(2, len(starts) + 1)]
    return min(found, key=lambda each: len(each.steps))


def steps_along(axis: WindowAxis, outputs: int, combine: BinaryOp) -> WindowSteps:
    """Return how to reduce the windows of ``outputs`` neighbouring outputs along an axis."""
    return window_steps(range(0, outputs * axis.stride, axis.stride), axis.window_points, axis.dilation, combine)


def step_counts(axis: WindowAxis, outputs: Ints, combine: BinaryOp) -> Ints:
    """Return how many steps the windows of so many neighbouring outputs along an axis take."""
    distinct, which = np.unique(outputs, return_inverse=True)
    return np.array([len(steps_along(axis, int(n), combine).steps) for n in distinct], np.int64)[which]


def _by_doubling(starts: Sequence[int], points: int, dilation: int, *, twice: bool) -> WindowSteps:
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


def _around_common_parts(starts: Sequence[int], points: int, dilation: int, most: int) -> WindowSteps:
    """Up to ``most`` neighbouring windows are each the part that all of them have, with what comes ahead of it and what
    follows. Both grow by a position from window to window (van Herk 1992, Gil and Werman 1993)."""
    steps: dict[Part, tuple[Part, Part, Part]] = {}

    def combined(a: Part, b: Part) -> Part:
        part = (a[0], a[1] + b[1])
        steps.setdefault(part, (part, a, b))
        return part

    def tree(first: int, count: int) -> Part:
        if count == 1:
            return (first, 1)
        half = count // 2
        return combined(tree(first, half), tree(first + half * dilation, count - half))

    windows: dict[int, Part] = {}
    for residue in range(dilation):
        rest = [start for start in starts if start % dilation == residue]
        while rest:
            span = rest[0] + points * dilation
            group = [start for start in rest[:most] if start < span]
            rest = rest[len(group) :]
            left = tree(group[-1], (span - group[-1]) // dilation)
            lefts = {group[-1]: left}
            for position in range(group[-1] - dilation, group[0] - 1, -dilation):
                lefts[position] = left = combined((position, 1), left)
            windows[group[0]] = lefts[group[0]]
            right: Part | None = None
            for before, start in pairwise(group):
                for position in range(before + points * dilation, start + points * dilation, dilation):
                    right = (position, 1) if right is None else combined(right, (position, 1))
                assert right is not None
                windows[start] = combined(lefts[start], right)
    return WindowSteps(tuple(steps.values()), tuple(windows[start] for start in starts))
