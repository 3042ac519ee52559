"""``tilewright tune`` submits a job and follows it to its best schedule."""

from pathlib import Path
from typing import Annotated

import typer

from ..api.responses import JobOut
from ..core.budget import Budget
from ..core.policy import SpacePolicy
from ..service.views import JobState
from .context import CommandContext
from .exits import Exit
from .expression import read_task
from .follow import follow
from .tables import best_panel, task_notes


def tune(
    context: typer.Context,
    operator: Annotated[str | None, typer.Argument(help="An operator (see: tilewright operators).")] = None,
    parameters: Annotated[list[str] | None, typer.Argument(help="Its parameters, NAME=VALUE.")] = None,
    workload: Annotated[
        Path | None, typer.Option(help="A file with a workload's JSON, instead of an operator.")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="A class of devices: llvm, cuda, cuda:ARCH or a device's key; on a service of one machine also cuda:1."
        ),
    ] = "llvm",
    trials: Annotated[int, typer.Option(help="How many candidates are measured.")] = 64,
    seconds: Annotated[float | None, typer.Option(help="Stop after this many seconds.")] = None,
    stall: Annotated[int | None, typer.Option(help="Stop after this many trials without a new best.")] = None,
    strategy: Annotated[str, typer.Option(help="model, evolution or random.")] = "model",
    seed: Annotated[int, typer.Option(help="Same seed and records: same search.")] = 0,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    cache: Annotated[
        str | None, typer.Option(help="warm (usual on llvm) or cold (on cuda): what the caches hold.")
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune/--no-prune", help="Search only the settings that rules and the prior find promising, or all."
        ),
    ] = True,
    prior: Annotated[
        bool,
        typer.Option(
            "--prior/--no-prior", help="Use the analytic estimate of times, or none (then nothing is pruned)."
        ),
    ] = True,
    tenant: Annotated[
        str | None, typer.Option(help="Whose the job is, and who its device time is charged to; default: your own.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag of the job; may be given often.")] = None,
    notes: Annotated[str, typer.Option(help="Notes of the job, for people.")] = "",
    priority: Annotated[
        int, typer.Option(help="-100 to 100; of a tenant's jobs, those with a higher one go first.")
    ] = 0,
    deadline: Annotated[
        float | None, typer.Option(help="The job fails if it is not done so many seconds after its submission.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure everything anew, even what records have already.")
    ] = False,
    units: Annotated[
        int,
        typer.Option(
            help="1 to 8 devices of one class, which each task has at once while nobody else waits for them; its "
            "budget needs 24 trials for each."
        ),
    ] = 1,
    detach: Annotated[bool, typer.Option(help="Print the job and leave (needs a running service).")] = False,
) -> None:
    """Find the best schedule of an expression on this machine, or on the service's."""
    given: CommandContext = context.obj
    task = read_task(operator, parameters or [], workload)
    with given.job_connection() as connection:
        client, lasting = connection.client, connection.lasting
        if detach and not lasting:
            raise typer.BadParameter(
                "a job can only go on without you on a running service: start one (tilewright serve), or give --url",
                param_hint="detach",
            )
        job = client.submit(
            task,
            budget=Budget(trials, seconds, stall),
            strategy=strategy,
            seed=seed,
            target=target,
            executor=executor,
            cache=cache,
            policy=SpacePolicy(prune, prior),
            tenant=tenant,
            tags=tag or (),
            notes=notes,
            priority=priority,
            deadline_seconds=deadline,
            fresh=fresh,
            units=units,
        )
        if not detach:
            try:
                job = follow(client, job, given.console)
            except KeyboardInterrupt:
                job = client.job(job.id) if lasting else client.cancel(job.id)
                note = f"goes on; see it with: tilewright job show {job.id}" if lasting else "is cancelled"
                given.console.print(f"job {job.id} {note}")
                raise
    if given.as_json:
        given.print_json(job)
    else:
        _show(given, job, given.dashboard(connection))
    if job.state is JobState.FAILED:
        given.console.print(f"error: {job.error}")
    if not detach and (job.state is not JobState.SUCCEEDED or any(t.best is None for t in job.tasks)):
        raise typer.Exit(Exit.FAILED)


def _show(given: CommandContext, job: JobOut, dashboard: str) -> None:
    """Print the best of each task, and where to go on."""
    for task in job.tasks:
        given.console.print(best_panel(task))
        for note in task_notes(task):
            given.console.print(note, soft_wrap=True)
    given.console.print(f"job        {job.id} ({job.state.value})")
    given.console.print(f"again      tilewright best {job.tasks[0].workload_key}", soft_wrap=True)
    given.console.print(f"dashboard  {dashboard}/jobs/{job.id}", soft_wrap=True)
