"""Renders models that users run for a terminal."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..api.model_responses import ModelExpectationOut, ModelKernelOut, ModelOut
from .tables import duration, fraction, rate, ratio


def expectation(found: ModelExpectationOut) -> str:
    """Say what a job is expected to win before it spends."""
    cost = "" if found.search_seconds is None else f", for about {duration(found.search_seconds)} of search"
    if not found.known:
        return f"expected: nothing is known of {found.workloads} workloads on this device yet{cost}"
    saving = f"{duration(found.saving_seconds)} of {duration(found.seconds)} a run"
    pays = "" if found.runs is None else f", which pays after {found.runs:,.0f} runs"
    return f"expected: saves {saving} ({found.known} of {found.workloads} workloads are known){cost}{pays}"


def models_table(models: Iterable[ModelOut]) -> Table:
    """Show one line for each model."""
    table = _table("model", "name", "workloads", "tuned", "kernels' time", "speed-up", "added")
    for model in models:
        newest = model.timings[0] if model.timings else None
        table.add_row(
            model.key[:12],
            model.name,
            str(len(model.kernels)),
            str(model.tuned),
            duration(model.kernel_seconds or None),
            "-" if newest is None else ratio(newest.baseline_seconds, newest.seconds),
            model.created_at[:10],
        )
    return table


def model_summary(model: ModelOut) -> RenderableType:
    """Show a model: a line for each workload, the one that takes longest first, then its foreign calls."""
    table = _table("workload", "what", "count", "schedule", "time of one", "speed", "share")
    for kernel in sorted(model.kernels, key=lambda k: k.share or 0.0, reverse=True):
        table.add_row(kernel.workload_key[:12], kernel.label, str(kernel.count), *_figures(kernel))
    title = (
        f"{model.name}: {model.tuned} of {len(model.kernels)} workloads tuned, {duration(model.kernel_seconds or None)}"
    )
    parts: list[RenderableType] = [Text(title, style="bold"), Text(model.key, style="dim"), table]
    if model.foreign_calls:
        calls = ", ".join(f"{count} {name}" for name, count in model.foreign_calls.items())
        parts.append(Text(f"foreign calls: {calls}"))
    return Group(*parts)


def _figures(kernel: ModelKernelOut) -> tuple[str, str, str, str]:
    if kernel.best is None or kernel.seconds is None:
        return "default", "-", "-", "-"
    seconds = kernel.best.seconds
    return "tuned", duration(seconds), rate(kernel.flops, seconds), fraction(kernel.share, 1.0)


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    right = ("workloads", "tuned", "count", "kernels' time", "speed-up", "time of one", "speed", "share")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left")
    return table
