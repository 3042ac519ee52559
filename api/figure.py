"""Draws the progress of a job with matplotlib: the same content as the chart of the job's page. It needs the extra
``plot``."""

from typing import TYPE_CHECKING

from ..core.errors import InvalidParameter, TilewrightError
from .dashboard_responses import ProgressOut
from .responses import TaskOut

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES: dict[str, str] = {
    "trials": "trials",
    "seconds": "seconds since the task began",
    "device": "seconds of the device",
}
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
ACCENT, MUTED, BAD = "#0f7b75", "#62666b", "#a8341f"


class MissingExtra(TilewrightError):
    """A part of Tilewright is used whose optional dependency is not installed."""

    code = "MISSING_EXTRA"


def new_figure(title: str) -> "Figure":
    """Return an empty figure. Raises MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'tilewright[plot]'") from error
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def progress_figure(
    task: TaskOut, progress: ProgressOut, title: str, *, across: str = "trials", log: bool = True
) -> "Figure":
    """Return a matplotlib figure of a task. Every trial is a point, and failures are crosses at the foot. The best so
    far is a line, with the quartiles of its samples as a band. Baseline and roofline are labelled lines. ``across`` is
    ``trials``, ``seconds`` or ``device``; ``log``: whether times stand on a logarithmic axis.

    Raises MissingExtra without matplotlib, InvalidParameter.
    """
    if across not in AXES:
        raise InvalidParameter(f"{across[:40]!r} is no axis; allowed: {', '.join(AXES)}", field="across")
    figure = new_figure(title)
    axes = figure.add_subplot()
    xs = _columns(progress)[across]
    timed = [(x, s) for x, s in zip(xs, progress.seconds, strict=True) if s is not None]
    failed = [x for x, s in zip(xs, progress.seconds, strict=True) if s is None]
    limits = [s for s in (task.baseline_seconds, task.roofline_seconds) if s]
    size, unit = _unit(min((s for _, s in timed), default=min(limits, default=1e-3)))
    axes.set_xlabel(AXES[across])
    axes.set_ylabel(f"{unit} per run")
    if log:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.scatter([x for x, _ in timed], [s / size for _, s in timed], s=12, color=MUTED, alpha=0.5, label="trials")
    steps = _best(xs, progress)
    if steps:
        at = [x for x, *_ in steps]
        best, low, high = ([step[i] / size for step in steps] for i in (1, 2, 3))
        axes.fill_between(at, low, high, step="post", color=ACCENT, alpha=0.2, linewidth=0, label="its quartiles")
        axes.step(at, best, where="post", color=ACCENT, linewidth=2, label="best so far")
    if failed:
        foot = axes.get_xaxis_transform()
        axes.scatter(failed, [0.025] * len(failed), marker="x", s=18, color=BAD, transform=foot, label="failed")
    by = {"flops": "arithmetic", "bytes": "memory"}.get(task.roofline_by or "", "")
    for seconds, name in ((task.baseline_seconds, task.baseline_name), (task.roofline_seconds, f"roofline, {by}")):
        if seconds:
            axes.axhline(seconds / size, color=MUTED, linewidth=1, linestyle="--")
            label = f"{name} {seconds / size:.4g} {unit}"
            side = axes.get_yaxis_transform()
            axes.text(0.995, seconds / size, label, transform=side, ha="right", va="bottom", fontsize="small")
    axes.set_xlim(left=0)  # only now: from here on an axis no longer follows what is drawn
    if not log:
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower left", frameon=False, ncols=4, fontsize="small")
    return figure


def _columns(progress: ProgressOut) -> dict[str, tuple[float, ...]]:
    return {
        "trials": tuple(sequence + 1 for sequence in progress.sequence),
        "seconds": progress.elapsed_seconds,
        "device": progress.device_seconds,
    }


def _best(xs: tuple[float, ...], progress: ProgressOut) -> list[tuple[float, float, float, float]]:
    """Return (x, seconds, lower quartile, upper quartile) of each new best, and once more at the end."""
    found = list[tuple[float, float, float, float]]()
    for i, seconds in enumerate(progress.seconds):
        if seconds is not None and (not found or seconds < found[-1][1]):
            found.append((xs[i], seconds, progress.best_low[i] or seconds, progress.best_high[i] or seconds))
    return [*found, (xs[-1], *found[-1][1:])] if found else []


def _unit(seconds: float) -> tuple[float, str]:
    return next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
