"""``tilewright tune`` submits a job and follows it to its best schedule."""

from typing import Annotated

import typer

from ..api.responses import JobOut
from ..core.budget import Budget
from ..core.policy import SpacePolicy
from ..service.views import JobState
from .context import CommandContext
from .exits import Exit
from .expression import read_task
from .follow import follow_submitted
from .options import Detach, DeviceClass, Executor, Operator, Parameters, Seed, Strategy, WorkloadFile
from .tables import best_panel, task_notes


def tune(
    context: typer.Context,
    operator: Operator = None,
    parameters: Parameters = None,
    workload: WorkloadFile = None,
    target: DeviceClass = "llvm",
    trials: Annotated[int, typer.Option(help="How many candidates are measured.")] = 64,
    seconds: Annotated[float | None, typer.Option(help="Stop after this many seconds.")] = None,
    stall: Annotated[int | None, typer.Option(help="Stop after this many trials without a new best.")] = None,
    strategy: Strategy = "model",
    seed: Seed = 0,
    executor: Executor = "local",
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
    detach: Detach = False,
) -> None:
    """Find the best schedule of an expression on this machine, or on the service's."""
    given: CommandContext = context.obj
    task = read_task(operator, parameters or [], workload)
    with given.job_connection(detach=detach) as connection:
        job = connection.client.submit(
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
            job = follow_submitted(given, connection, job)
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
