"""Programs compared with eager, in float64 terms.

Three results are needed: ours, eager's, and the truth, which is the traced graph run in float64. Ours is right where
its error is at most twice eager's own, plus a few roundings of the largest value. A fixed tolerance would prove nothing
of values that are small.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

ROUNDINGS = 8
"""How many roundings of the largest value an output may be off, beside twice eager's own error. Where factors of
float32 may be rounded these are such roundings: eager may choose an exact kernel all the same."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An output whose ``error`` is beyond what is ``allowed``, both absolute."""

    output: int
    error: float
    allowed: float


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A kernel that failed: its workload, its operators, and by how much. It was replaced by ATen."""

    workload_key: str
    schedule: dict[str, object]
    operators: tuple[str, ...]
    error: float
    allowed: float


class Float64Interpreter(torch.fx.Interpreter):  # type: ignore[misc]
    """It runs a traced graph with every float in float64. An operator that does not take float64 runs as it is."""

    def run(self, *arguments: Any, **keywords: Any) -> Any:
        return super().run(*(_wide_copy(a) for a in arguments), **keywords)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        narrow = any(isinstance(a, torch.dtype) and a.is_floating_point for a in (*args, *kwargs.values()))
        if narrow:
            args = tuple(_wide_dtype(a) for a in args)
            kwargs = {k: _wide_dtype(a) for k, a in kwargs.items()}
        try:
            result = super().call_function(target, args, kwargs)
        except (RuntimeError, NotImplementedError, AssertionError):
            narrowed = torch.fx.node.map_aggregate(args, _narrow)
            result = super().call_function(target, narrowed, kwargs)
        return torch.fx.node.map_aggregate(result, _wide)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _wide(super().get_attr(target, args, kwargs))


def _wide_dtype(a: Any) -> Any:
    return torch.float64 if isinstance(a, torch.dtype) and a.is_floating_point else a


def _wide(a: Any) -> Any:
    return a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a


def _wide_copy(a: Any) -> Any:
    """Return a copy, because the graph may overwrite its arguments."""
    return _wide(a).clone() if isinstance(a, torch.Tensor) else a


def _narrow(a: Any) -> Any:
    return a.float() if isinstance(a, torch.Tensor) and a.dtype is torch.float64 else a


def is_random(module: Any) -> bool:
    """Return whether a traced graph draws random numbers, so that two runs of it differ."""
    tag = torch.Tag.nondeterministic_seeded
    return any(tag in getattr(n.target, "tags", ()) for n in module.graph.nodes)


def compare(
    ours: Sequence[Any], eager: Sequence[Any], truth: Sequence[Any], factor_error: float = 0.0
) -> Mismatch | None:
    """Return the worst output that is beyond its bound, or None where all are right. ``factor_error``: that of the
    precision (``core.precision``) of what computed them."""
    worst: Mismatch | None = None
    for n, (a, b, t) in enumerate(zip(ours, eager, truth, strict=True)):
        if not isinstance(a, torch.Tensor):
            continue
        found = compare_tensors(a, b, t, factor_error)
        if found is not None and (worst is None or found[0] - found[1] > worst.error - worst.allowed):
            worst = Mismatch(n, *found)
    return worst


def compare_tensors(ours: Any, eager: Any, truth: Any, factor_error: float = 0.0) -> tuple[float, float] | None:
    """(error, allowed) where ``ours`` is beyond its bound; None where it is right. ``factor_error`` is as for
    ``compare``."""
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return float("inf"), 0.0
    if not ours.is_floating_point():
        wrong = int((ours != eager).sum())
        return (float(wrong), 0.0) if wrong else None
    finite = torch.isfinite(truth) & torch.isfinite(eager)
    a, b = ours.double(), eager.double()
    rest = ~finite & torch.isfinite(truth).logical_not()
    if bool((torch.isfinite(a) & rest & ~torch.isfinite(b)).any()):
        return float("inf"), 0.0
    if not bool(finite.any()):
        return None
    a, b, t = a[finite], b[finite], truth.double()[finite]
    size = float(t.abs().max())
    rounding = max(torch.finfo(ours.dtype).eps, factor_error)
    allowed = 2.0 * float((b - t).abs().max()) + ROUNDINGS * rounding * size
    error = float((a - t).abs().max())
    return None if error <= allowed else (error, allowed)
