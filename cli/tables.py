"""Renders answers for a terminal."""

from collections.abc import Iterable

from rich.console import Group, JustifyMethod, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..api.responses import (
    BestOut,
    DeviceOut,
    ExpectedLossOut,
    FailedOut,
    JobOut,
    ScheduleOut,
    TaskOut,
    TimedOut,
    TrialOut,
)
from ..core.retuning import RetuneVerdict

WIDE = 100
"""A terminal with fewer columns shows no bars, no rates, and not when jobs were submitted."""


def duration(seconds: float | None) -> str:
    """Write a time with three digits and the unit that fits: s, ms, µs or ns."""
    if seconds is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def rate(flops: int, seconds: float | None) -> str:
    """Write operations per second in GFLOP/s."""
    return "-" if not seconds or not flops else f"{flops / seconds / 1e9:.4g} GFLOP/s"


def ratio(numerator: float | None, denominator: float | None) -> str:
    return "-" if not numerator or not denominator else f"{numerator / denominator:.2f}x"


def fraction(numerator: float | None, denominator: float | None) -> str:
    return "-" if not numerator or not denominator else f"{100 * numerator / denominator:.0f} %"


def knobs(schedule: ScheduleOut) -> str:
    """Write the knobs on one line."""
    return "  ".join(f"{name}={value}" for name, value in schedule.knobs.items())


def _pairs(rows: Iterable[tuple[str, str | Text]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def task_name(task: TaskOut) -> str:
    """Return what a task is called: ``matmul m=512 n=512``, or the beginning of its key when it is an expression of
    the user's own."""
    if task.operator is None:
        return f"expression {task.workload_key[:12]}"
    return " ".join([task.operator, *(f"{k}={v}" for k, v in (task.parameters or {}).items())])


def task_notes(task: TaskOut) -> list[str]:
    """Return what there is to say of how a task came to its records: its place in the queue, what it waits for, what it
    took over, lost attempts."""
    notes = []
    if task.queue_position is not None:
        notes.append(f"queue      position {task.queue_position}")
    if task.waits_for is not None:
        notes.append(f"waits      {task.waits_for}")
    if task.adopted:
        source = "records" if task.source_job is None else f"task {task.source_task} of job {task.source_job}"
        notes.append(f"adopted    {task.adopted} of {task.trials} trials from {source}")
    if task.retuned is not None:
        notes.append(f"retuned    {VERDICTS[task.retuned.verdict]}")
    if task.attempts > 1 or task.losses:
        notes.append(f"attempts   {task.attempts}, of which the last {task.losses} were lost")
    return notes


def best_panel(task: TaskOut) -> RenderableType:
    """Show the best of a task: its speed against baseline and peak, and the schedule."""
    best = task.best
    if best is None:
        failures = ", ".join(f"{n} {kind}" for kind, n in task.failures.items()) or "none measured"
        return Panel(f"no schedule yet ({failures})", title=task_name(task), border_style="red")
    by = {"flops": "arithmetic peak", "bytes": "memory peak"}.get(task.roofline_by or "", "peak")
    speed = Text.assemble((duration(best.seconds), "bold green"), f" ± {100 * best.spread:.1f} %")
    against = ratio(task.baseline_seconds, best.seconds)
    baseline = f"{duration(task.baseline_seconds)} ({rate(task.flops, task.baseline_seconds)})"
    rows: list[tuple[str, str | Text]] = [
        ("time", speed),
        ("speed", rate(task.flops, best.seconds)),
        *([] if task.baseline_seconds is None else [(f"against {task.baseline_name}", f"{against}   {baseline}")]),
        (f"of the {by}", f"{fraction(task.roofline_seconds, best.seconds)}   limit {duration(task.roofline_seconds)}"),
        ("schedule", f"{best.schedule.sketch} version {best.schedule.version}"),
        ("knobs", knobs(best.schedule)),
        (
            "max error",
            f"{best.evidence.max_error:.3g} of the tolerance" if best.evidence.max_error is not None else "-",
        ),
        ("device", best.device_name),
        ("timing", f"{fraction(task.timing_seconds, task.wall_seconds)} of {duration(task.wall_seconds)}"),
        ("workload", task.workload_key),
    ]
    return Panel(_pairs(rows), title=task_name(task), border_style="green")


def expected_loss(loss: ExpectedLossOut) -> str:
    """Show what a relaxed answer may cost."""
    if loss.median is None or loss.low is None or loss.high is None:
        return loss.ground
    return f"{loss.median:.1%} (90 %: {loss.low:.1%} to {loss.high:.1%}), from {loss.ground}"


def best_answer(best: BestOut) -> RenderableType:
    """Show the answer of a look-up."""
    gflops = "-" if best.gflops is None else f"{best.gflops:.4g} GFLOP/s"
    rows: list[tuple[str, str | Text]] = [
        ("time", Text(f"{duration(best.seconds)} ± {100 * best.spread:.1f} %", style="bold green")),
        ("speed", gflops),
        ("match", ", ".join(best.match)),
        *([] if best.expected_loss is None else [("expected loss", expected_loss(best.expected_loss))]),
        ("schedule", f"{best.schedule.sketch} version {best.schedule.version}"),
        ("knobs", knobs(best.schedule)),
        ("device", best.device_name),
        ("profile", best.profile),
        ("recorded", f"{best.created_at} by job {best.job_id}, record {best.record_id}"),
        ("workload", best.workload_key),
    ]
    return _pairs(rows)


def jobs_table(jobs: Iterable[JobOut], width: int) -> Table:
    """Show one line for each task of each job, on ``width`` columns: what they are wraps, and nothing else does. When
    they were submitted is left out of a narrow table."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    numbers = ("trials", "best", "x NumPy")
    for name in ("job", "state", "task", *numbers, *(["created"] if width >= WIDE else [])):
        justify: JustifyMethod = "right" if name in numbers else "left"
        table.add_column(name, justify=justify, no_wrap=name != "task", overflow="fold")
    for job in jobs:
        for task in job.tasks:
            seconds = task.best.seconds if task.best else None
            against = ratio(task.baseline_seconds, seconds)
            row = (job.id, job.state.value, task_name(task), str(task.trials), duration(seconds), against)
            table.add_row(*row, *([job.created_at[:19]] if width >= WIDE else []))
        if job.task_count > len(job.tasks):
            table.add_row(job.id, "", f"and {job.task_count - len(job.tasks)} more tasks")
    return table


VERDICTS = {
    RetuneVerdict.KEPT: "kept",
    RetuneVerdict.OUTRANKED: "searched: another one is first now",
    RetuneVerdict.SLOWER: "searched: the winner is slower",
    RetuneVerdict.FAILED: "searched: the winner cannot be built or timed",
    RetuneVerdict.CURRENT: "no earlier record",
}


def retuned_table(job: JobOut) -> Table:
    """Show what became of the earlier winner of each task of a job that retunes."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("task", "before", "now", "ratio", "noise", "", "trials", "before", "saved", "time saved"):
        table.add_column(name, justify="left" if name in ("task", "") else "right")
    for task in job.tasks:
        found = task.retuned
        if found is None:
            table.add_row(task_name(task), "", "", "", "", task.state.value, str(task.trials))
            continue
        table.add_row(
            task_name(task),
            duration(found.earlier_seconds),
            duration(task.best.seconds if task.best else None),
            "-" if found.ratio is None else f"{found.ratio:.3f}",
            f"{100 * found.noise:.1f} %",
            VERDICTS[found.verdict],
            str(task.trials),
            str(found.earlier_trials),
            "-" if task.saved_trials is None else str(task.saved_trials),
            "-" if task.saved_seconds is None else f"{task.saved_seconds:.1f} s",
        )
    return table


def retuned_summary(job: JobOut) -> str:
    """Say in a line what a job that retunes saved against tuning from the beginning."""
    ended = [task for task in job.tasks if task.saved_trials is not None]
    kept = sum(task.retuned is not None and task.retuned.verdict is RetuneVerdict.KEPT for task in job.tasks)
    spent = sum(task.retuned.earlier_trials for task in ended if task.retuned is not None)
    saved = sum(task.saved_trials or 0 for task in ended)
    seconds = sum(task.saved_seconds or 0.0 for task in ended)
    share = f" ({100 * saved / spent:.0f} %)" if spent else ""
    return f"kept       {kept} of {len(job.tasks)}; saved {saved} of {spent} trials{share} and {seconds:.1f} s"


def trials_table(trials: Iterable[TrialOut]) -> Table:
    """Show one line for each trial."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("trial", "record", "outcome", "spread", "schedule"):
        table.add_column(name, justify="right" if name in ("trial", "record", "spread") else "left")
    for trial in trials:
        match trial.outcome:
            case TimedOut(seconds=seconds, spread=spread):
                outcome, noise = Text(duration(seconds)), f"{100 * spread:.1f} %"
            case FailedOut(stage=stage, reason=reason, detail=detail):
                outcome, noise = Text(f"{stage.value}: {reason.value} {detail[:60]}", style="red"), ""
        table.add_row(str(trial.sequence), str(trial.record_id), outcome, noise, knobs(trial.schedule))
    return table


def device_panel(device: DeviceOut) -> RenderableType:
    """Show hardware columns and measured peaks."""
    target = device.target
    threads = "threads" if target.kind == "llvm" else "multiprocessors"
    rows: list[tuple[str, str | Text]] = [
        ("target", f"{target.kind} {target.arch}, {target.threads} {threads}, {8 * target.vector_bytes}-bit vectors"),
        ("features", " ".join(target.features)),
        *((name, f"{value:,.0f}") for name, value in device.hardware.items()),
        *((name, f"{value:.4g}") for name, value in device.measured.items()),
        ("key", device.key),
    ]
    here = "attached" if device.present else "not attached here"
    return Group(Text(f"{device.name} ({here})", style="bold"), _pairs(rows))
