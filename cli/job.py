"""``tilewright job`` lists, shows, follows and cancels jobs of the service."""

from typing import Annotated

import typer

from ..core.policy import SpacePolicy
from .context import CommandContext
from .follow import follow
from .tables import best_panel, jobs_table, trials_table

app = typer.Typer(help="List, show, follow and cancel jobs.", no_args_is_help=True)


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
    if given.as_json:
        given.print_json([job.model_dump(mode="json") for job in jobs])
    else:
        given.console.print(
            jobs_table(jobs) if jobs else "no jobs yet; make one with: tilewright tune matmul m=512 n=512 k=512"
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
        f"searches {SpacePolicy(job.prune, job.prior)}"
    )
    if job.error:
        given.console.print(f"error: {job.error}")
    for task in job.tasks:
        given.console.print(best_panel(task))


@app.command()
def watch(context: typer.Context, job_id: str) -> None:
    """Follow a job until it ends. Without a running service this command runs it."""
    given: CommandContext = context.obj
    with given.job_connection() as connection:
        client = connection.client
        job = follow(client, client.job(job_id), given.console)
    if given.as_json:
        given.print_json(job)
    else:
        for task in job.tasks:
            given.console.print(best_panel(task))


@app.command()
def cancel(context: typer.Context, job_id: str) -> None:
    """Stop a job; what it measured stays."""
    given: CommandContext = context.obj
    with given.client() as client:
        job = client.cancel(job_id)
    if given.as_json:
        given.print_json(job)
    else:
        given.console.print(f"job {job.id}: {job.state.value}")


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
    if given.as_json:
        given.print_json([trial.model_dump(mode="json") for trial in found])
    else:
        given.console.print(trials_table(found))
