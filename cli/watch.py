"""Follows a job over the whole terminal: figures, the chart of its progress, the newest trials."""

import math
import time
from collections import deque
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..api.client import Client
from ..api.responses import EventOut, JobOut, TaskOut
from .tables import WIDE, duration, fraction, rate, ratio, task_name

NEWEST = 60
"""So many of the newest trials are listed, where there is room."""
REDRAW_SECONDS = 0.2
_LEFT = 12
"""The columns of a chart that its scale takes."""


@dataclass
class WatchedTask:
    """The trials of a task: (sequence, seconds or None) for the chart, and lines on the newest ones."""

    points: list[tuple[int, float | None]] = field(default_factory=list)
    newest: deque[Text] = field(default_factory=lambda: deque(maxlen=NEWEST))

    def add(self, sequence: int, seconds: float | None, failure: str | None) -> None:
        """Add a trial, unless it is known. ``failure`` says why it has no seconds."""
        if self.points and sequence <= self.points[-1][0]:
            return
        self.points.append((sequence, seconds))
        told = failure or "failed" if seconds is None else duration(seconds)
        self.newest.append(Text(f"{sequence + 1:>6}  {told}", style="red" if seconds is None else ""))


def watch(client: Client, job: JobOut, console: Console) -> JobOut:
    """Show a job until it ends; return it in its final state. Ctrl-C leaves the view, and not the job."""
    watched = [WatchedTask() for _ in job.tasks]
    after = _catch_up(client, job, watched)
    with Live(screen_of(job, watched, console.width), console=console, screen=True, auto_refresh=False) as live:
        drawn = 0.0
        for event in client.events(job.id, after=after):
            _add(watched, event)
            if event.kind in ("best", "task", "state"):
                job = client.job(job.id)
            if event.kind == "task":  # it may have taken trials over, of which no event tells
                _catch_up(client, job, watched)
            if time.monotonic() - drawn > REDRAW_SECONDS:
                live.update(screen_of(job, watched, console.width), refresh=True)
                drawn = time.monotonic()
        job = client.job(job.id)
        _catch_up(client, job, watched)
        live.update(screen_of(job, watched, console.width), refresh=True)
    return job


def _catch_up(client: Client, job: JobOut, watched: list[WatchedTask]) -> int:
    """Add the trials that are not known yet; return the event after which events tell of others."""
    events = []
    for task, one in zip(job.tasks, watched, strict=True):
        found = client.progress(job.id, task=task.index, after=one.points[-1][0] if one.points else -1)
        events.append(found.last_event_id)
        for sequence, seconds, failure in zip(found.sequence, found.seconds, found.failure, strict=True):
            one.add(sequence, seconds, failure)
    return min(events)


def _add(watched: list[WatchedTask], event: EventOut) -> None:
    if event.kind != "trial":
        return
    data = event.data
    failure = None
    if data["seconds"] is None:
        detail = str(data.get("detail") or "").partition("\n")[0]
        failure = f"{data['stage']}:{data['reason']} {detail}".rstrip()
    watched[int(data["task"])].add(int(data["sequence"]), data["seconds"], failure)


def screen_of(job: JobOut, watched: list[WatchedTask], width: int) -> RenderableType:
    """Return the whole view for a terminal of ``width`` columns. The chart is that of the task which runs, or of the
    last that has trials."""
    running = [t.index for t in job.tasks if t.state.value == "leased"]
    shown = running[0] if running else max((n for n, one in enumerate(watched) if one.points), default=0)
    task = job.tasks[shown]
    head = Text.assemble(
        (f"job {job.id}  ", "bold"),
        (job.state.value, "green" if job.state.value in ("running", "succeeded") else "yellow"),
        f"  {job.strategy} search, seed {job.seed}, on {job.device_name or job.target}",
        ("   Ctrl-C leaves, the job goes on", "dim"),
    )
    layout = Layout()
    layout.split_column(
        Layout(head, size=1),
        Layout(_tasks(job, width >= WIDE), size=min(len(job.tasks), 6) + 3),
        Layout(name="below"),
    )
    chart = Panel(_Chart(watched[shown].points, task), title=f"{task_name(task)}: time per run over trials")
    newest = Group(*reversed(watched[shown].newest)) if watched[shown].newest else Text("no trial yet", style="dim")
    layout["below"].split_row(
        Layout(chart, ratio=2),
        Layout(Panel(newest, title="newest trials"), ratio=1),
    )
    return layout


def _tasks(job: JobOut, wide: bool) -> Table:
    table = Table(box=None, header_style="dim", expand=True, pad_edge=False)
    table.add_column("task", ratio=1, overflow="ellipsis")  # it alone gives way where the terminal is narrow
    for name in (*(("", "rate") if wide else ()), "trials", "best", "vs. baseline", "of roofline", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in job.tasks[:6]:
        seconds = task.best.seconds if task.best else None
        done = ProgressBar(total=job.budget.trials, completed=min(task.trials, job.budget.trials), width=10)
        table.add_row(
            Text(task_name(task), no_wrap=True, overflow="ellipsis"),
            *((done, rate(task.flops, seconds)) if wide else ()),
            f"{task.trials} of {job.budget.trials}",
            Text(duration(seconds), style="bold green"),
            ratio(task.baseline_seconds, seconds),
            fraction(task.roofline_seconds, seconds),
            str(sum(task.failures.values())),
        )
    if len(job.tasks) > 6:
        table.add_row(f"… and {len(job.tasks) - 6} more")
    return table


class _Chart:
    """Draws trials as dots and the best so far as a line, on a logarithmic scale, as large as there is room."""

    def __init__(self, points: list[tuple[int, float | None]], task: TaskOut) -> None:
        self._points = points
        self._task = task

    def __rich_console__(self, console: Console, options: object) -> list[Text]:
        width = getattr(options, "max_width", 80) - _LEFT
        height = (getattr(options, "height", None) or 16) - 1
        return chart_lines(self._points, self._task, max(8, width), max(4, height))


def chart_lines(points: list[tuple[int, float | None]], task: TaskOut, width: int, height: int) -> list[Text]:
    """Return a chart as ``height`` lines of ``width`` columns beside its scale, and one line below."""
    timed = [seconds for _, seconds in points if seconds]
    lines = {"─": ("baseline", task.baseline_seconds), "=": ("roofline", task.roofline_seconds)}
    if not timed:
        return [Text("no trial has been timed yet: peaks of the device and the baseline come first", style="dim")]
    known = [*timed, *(seconds for _, seconds in lines.values() if seconds)]
    low, high = math.log(min(known)), math.log(max(known) * 1.0001)
    last = max(1, points[-1][0])
    grid = [[" "] * width for _ in range(height)]

    def row(seconds: float) -> int:
        return round((high - math.log(seconds)) / max(high - low, 1e-9) * (height - 1))

    for mark, (_, limit) in lines.items():
        if limit:
            grid[row(limit)] = [mark] * width
    best = math.inf
    stairs = [math.inf] * width
    for sequence, seconds in points:
        column = min(width - 1, sequence * width // (last + 1))
        if seconds is None:
            grid[-1][column] = "x" if grid[-1][column] == " " else grid[-1][column]
            continue
        best = min(best, seconds)
        stairs[column] = best
        grid[row(seconds)][column] = "·"
    best = math.inf
    for column, value in enumerate(stairs):
        best = min(best, value)
        if best < math.inf:
            grid[row(best)][column] = "█"
    for mark, (name, limit) in lines.items():
        if limit:
            named = f" {name} {duration(limit)} {mark}"
            grid[row(limit)][-len(named) :] = named[-width:]
    labels = {0: duration(math.exp(high)), height - 1: duration(math.exp(low)), row(min(timed)): duration(min(timed))}
    styles = {"█": "green", "·": "dim", "x": "red", "─": "yellow", "=": "cyan"}
    found = []
    for n, cells in enumerate(grid):
        line = Text(f"{labels.get(n, ''):>{_LEFT - 2}}  ", style="dim")
        for cell in cells:
            line.append(cell, styles.get(cell, ""))
        found.append(line)
    legend = f"trials 1 to {last + 1}   █ best   · timed   x failed"
    return [*found, Text(legend, style="dim", no_wrap=True, overflow="ellipsis")]
