"""``tilewright job`` lists, shows, follows and changes jobs of the service."""

from collections.abc import Callable
from typing import Annotated

import typer

from ..api.client import Client
from ..api.responses import JobOut
from ..core.policy import SpacePolicy
from .context import CommandContext
from .fleet_tables import attempts_table
from .follow import follow
from .tables import best_panel, jobs_table, task_notes, trials_table
from .watch import watch as watch_job

app = typer.Typer(help="List, show, follow, pause, retry and cancel jobs.", no_args_is_help=True)


@app.command("list")
def list_jobs(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="Show only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, newest first.")] = 50,
) -> None:
    """List the jobs, newest first."""
    given: CommandContext = context.obj
    with given.client() as client:
        jobs = [job for job, _ in zip(client.jobs(state=state, page_size=min(limit, 100)), range(limit), strict=False)]
    given.show(
        jobs,
        jobs_table(jobs, given.console.width)
        if jobs
        else "no jobs yet; make one with: tilewright tune matmul m=512 n=512 k=512",
    )


@app.command()
def show(context: typer.Context, job_id: str) -> None:
    """Show one job: its state, how it searches, and the best of each task."""
    given: CommandContext = context.obj
    with given.client() as client:
        job = client.job(job_id)
    if given.as_json:
        given.print_json(job)
        return
    given.console.print(
        f"job {job.id}: {job.state.value}, {job.strategy} search, seed {job.seed}, on {job.device_name}\n"
        f"searches {SpacePolicy(job.prune, job.prior)}\n"
        f"tenant {job.tenant}, priority {job.priority}{', paused' if job.paused else ''}"
    )
    if job.error:
        given.console.print(f"error: {job.error}")
    for task in job.tasks:
        given.console.print(best_panel(task))
        for note in task_notes(task):
            given.console.print(note, soft_wrap=True)


@app.command()
def watch(context: typer.Context, job_id: str) -> None:
    """Follow a job over the whole terminal until it ends. Without a running service this command runs it."""
    given: CommandContext = context.obj
    with given.job_connection() as connection:
        client = connection.client
        show = watch_job if given.console.is_terminal and not given.as_json else follow
        job = show(client, client.job(job_id), given.console)
    if given.as_json:
        given.print_json(job)
    else:
        for task in job.tasks:
            given.console.print(best_panel(task))


@app.command()
def cancel(context: typer.Context, job_id: str) -> None:
    """Stop a job; what it measured stays."""
    _change(context, lambda client: client.cancel(job_id))


@app.command()
def pause(context: typer.Context, job_id: str) -> None:
    """Hold a job back; its tasks in hand are given back after the trial that runs."""
    _change(context, lambda client: client.pause(job_id))


@app.command()
def resume(context: typer.Context, job_id: str) -> None:
    """Let a paused job go on."""
    _change(context, lambda client: client.resume(job_id))


@app.command()
def retry(context: typer.Context, job_id: str) -> None:
    """Try the tasks of a job again that are dead after too many lost attempts."""
    _change(context, lambda client: client.retry(job_id))


@app.command(context_settings={"ignore_unknown_options": True})
def priority(
    context: typer.Context,
    job_id: str,
    priority: Annotated[int, typer.Argument(min=-100, max=100, help="Of a tenant's jobs, higher ones go first.")],
) -> None:
    """Change the priority of a job."""
    _change(context, lambda client: client.set_priority(job_id, priority))


def _change(context: typer.Context, change: Callable[[Client], JobOut]) -> None:
    given: CommandContext = context.obj
    with given.client() as client:
        job = change(client)
    if given.as_json:
        given.print_json(job)
    else:
        paused = ", paused" if job.paused else ""
        given.console.print(f"job {job.id}: {job.state.value}{paused}, priority {job.priority}")


@app.command()
def attempts(
    context: typer.Context,
    job_id: str,
    task: Annotated[int, typer.Option(min=0, help="Which of the job's tasks.")] = 0,
) -> None:
    """List the attempts at a task: who searched it with which units, and how that ended."""
    given: CommandContext = context.obj
    with given.client() as client:
        found = client.attempts(job_id, task=task)
    given.show(found, attempts_table(found) if found else "nobody has begun with this task")


@app.command()
def trials(
    context: typer.Context,
    job_id: str,
    task: Annotated[int, typer.Option(min=0, help="Which of the job's tasks.")] = 0,
    order: Annotated[str, typer.Option(help="oldest, newest or best.")] = "best",
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 20,
) -> None:
    """List the measured candidates of a job."""
    given: CommandContext = context.obj
    with given.client() as client:
        pages = client.trials(job_id, task=task, order=order, page_size=min(limit, 200))
        found = [trial for trial, _ in zip(pages, range(limit), strict=False)]
    given.show(found, trials_table(found))
