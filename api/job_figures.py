"""Draws what a job's page shows beside its progress: knobs, the cost model, time by unit, and the device."""

from typing import TYPE_CHECKING

from .dashboard_responses import DeviceHealthOut, KnobsOut, ModelQualityOut, WorkerList
from .figure import ACCENT, BAD, MUTED, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGES = ("search", "compile", "check", "time", "overhead")
MOST_KNOBS, MOST_READINGS = 12, 4


def knobs_figure(knobs: KnobsOut, title: str) -> "Figure":
    """Return a figure of a task's knobs: their importance, and the best time for each pair of values of two of them.

    Raises MissingExtra without matplotlib.
    """
    figure = new_figure(title)
    left, right = figure.subplots(1, 2)
    known = [knob for knob in knobs.knobs if knob.importance is not None][:MOST_KNOBS]
    left.barh([knob.name for knob in known], [100 * (knob.importance or 0.0) for knob in known], color=ACCENT)
    left.invert_yaxis()
    left.set_xlabel(f"importance in % ({knobs.method})")
    pair = knobs.slice
    if not known or pair is None:
        return _empty(right, figure, "no two knobs vary")
    cells = [cell for cell in pair.cells if cell.seconds is not None]
    xs, ys = (_in_order({getattr(cell, name) for cell in cells}) for name in ("x", "y"))
    places = [(xs.index(str(cell.x)), ys.index(str(cell.y))) for cell in cells]
    drawn = right.scatter(
        [x for x, _ in places],
        [y for _, y in places],
        c=[1e6 * (cell.seconds or 0.0) for cell in cells],
        marker="s",
        s=120,
        cmap="viridis",
    )
    right.set_xticks(range(len(xs)), xs, rotation=45)
    right.set_yticks(range(len(ys)), ys)
    right.set_xlabel(pair.x)
    right.set_ylabel(pair.y)
    figure.colorbar(drawn, ax=right, label="best time in µs")
    return figure


def model_figure(quality: ModelQualityOut, title: str) -> "Figure":
    """Return a figure of a task's cost model: predicted against measured scores, and their rank correlation by how many
    results the model had learned from.

    Raises MissingExtra without matplotlib.
    """
    figure = new_figure(title)
    left, right = figure.subplots(1, 2)
    if not quality.points:
        left.set_axis_off()
        return _empty(right, figure, "no trial was predicted")
    left.scatter(
        [100 * p.predicted for p in quality.points],
        [100 * p.measured for p in quality.points],
        s=12,
        color=ACCENT,
        alpha=0.5,
    )
    left.axline((0, 0), slope=1, color=MUTED, linewidth=1, linestyle="--")
    left.set_xlabel("predicted score in %")
    left.set_ylabel("measured score in %")
    rounds = [r for r in quality.rounds if r.rank_correlation is not None]
    right.plot([r.learned_from for r in rounds], [r.rank_correlation for r in rounds], marker="o", color=ACCENT)
    right.set_ylim(-1.05, 1.05)
    right.set_xlabel("results learned from")
    right.set_ylabel("rank correlation (Spearman)")
    return figure


def workers_figure(workers: WorkerList, title: str) -> "Figure":
    """Return a figure of the seconds that a task's trials took on each unit, by what they were spent on.

    Raises MissingExtra without matplotlib.
    """
    figure = new_figure(title)
    axes = figure.add_subplot()
    names = [worker.unit or "unit not recorded" for worker in workers.workers]
    begin = [0.0] * len(names)
    for stage in STAGES:
        seconds = [float(getattr(worker, stage)) for worker in workers.workers]
        axes.barh(names, seconds, left=begin, label="other" if stage == "overhead" else stage)
        begin = [a + b for a, b in zip(begin, seconds, strict=True)]
    axes.set_xlabel("seconds")
    figure.legend(loc="outside lower left", frameon=False, ncols=len(STAGES), fontsize="small")
    return figure


def health_figure(health: DeviceHealthOut, title: str) -> "Figure":
    """Return a figure of the device beside a task's trials: the time of the anchor, and what else was read.

    Raises MissingExtra without matplotlib.
    """
    figure = new_figure(title)
    names = [n for n in health.readings if any(row.readings.get(n) is not None for row in health.rows)][:MOST_READINGS]
    every = figure.subplots(1 + len(names), 1, sharex=True, squeeze=False)[:, 0]
    anchored = [row for row in health.rows if row.anchor_seconds]
    every[0].plot([r.sequence for r in anchored], [1e6 * (r.anchor_seconds or 0.0) for r in anchored], color=BAD)
    every[0].set_ylabel("anchor in µs")
    for axes, name in zip(every[1:], names, strict=True):
        found = [(row.sequence, row.readings[name]) for row in health.rows if row.readings.get(name) is not None]
        axes.plot([x for x, _ in found], [y for _, y in found], color=ACCENT)
        axes.set_ylabel(name.replace("_", " "), fontsize="small")
    every[-1].set_xlabel("trial")
    return figure


def _in_order(values: set[int | str]) -> list[str]:
    """Return values as texts, numbers first and by size."""
    return [str(v) for v in sorted(values, key=lambda v: (isinstance(v, str), v))]


def _empty(axes: "Axes", figure: "Figure", words: str) -> "Figure":
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", color=MUTED)
    return figure
