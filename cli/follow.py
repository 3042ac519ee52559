"""Follows a job on the terminal until it ends."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from ..api.client import Client
from ..api.responses import JobOut, TaskOut
from .context import CommandContext, Connection
from .tables import duration, rate, ratio, task_name


def follow_submitted(given: CommandContext, connection: Connection, job: JobOut) -> JobOut:
    """Follow a job that the command has submitted; return it in its final state. Where that is interrupted, say what
    becomes of the job, which is cancelled on a service of the command's own."""
    try:
        return follow(connection.client, job, given.console)
    except KeyboardInterrupt:
        job = connection.client.job(job.id) if connection.lasting else connection.client.cancel(job.id)
        note = f"goes on; see it with: tilewright job show {job.id}" if connection.lasting else "is cancelled"
        given.console.print(f"job {job.id} {note}")
        raise


def follow(client: Client, job: JobOut, console: Console) -> JobOut:
    """Show a live bar for each task with the best so far; return the job in its final state.

    This reads the event stream, so that it ends with the job and misses nothing. On a console that is no terminal it
    prints a line for each improvement instead.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars = [progress.add_task(task_name(t), total=_limit(job, t), best="") for t in job.tasks]
        _update(progress, bars, job)
        for event in client.events(job.id):
            if event.kind == "trial":
                task = int(event.data.get("task", 0))
                progress.advance(bars[task])
            if event.kind in ("best", "task", "state"):
                job = client.job(job.id)
                _update(progress, bars, job)
            if event.kind == "best" and not console.is_terminal:
                task = int(event.data.get("task", 0))
                console.print(f"trial {job.tasks[task].trials}: {_best(job, task)}", highlight=False)
    return client.job(job.id)


def _update(progress: Progress, bars: list[TaskID], job: JobOut) -> None:
    for index, (bar, task) in enumerate(zip(bars, job.tasks, strict=True)):
        progress.update(bar, completed=task.trials, total=_limit(job, task), best=_best(job, index))


def _limit(job: JobOut, task: TaskOut) -> int:
    return task.trial_limit or job.budget.trials


def _best(job: JobOut, index: int) -> str:
    task = job.tasks[index]
    if task.best is None:
        return f"{sum(task.failures.values())} failed" if task.failures else ""
    seconds = task.best.seconds
    against = "" if task.baseline_seconds is None else f"  {ratio(task.baseline_seconds, seconds)} NumPy"
    return f"best {duration(seconds)}  {rate(task.flops, seconds)}{against}"
