"""``tilewright retune`` measures again what was the best before a change, and searches only what moved."""

from typing import Annotated

import typer

from ..core.budget import Budget
from ..core.retuning import RUNNERS_UP
from ..service.views import JobState
from .context import CommandContext
from .exits import Exit
from .follow import follow_submitted
from .options import Detach, Executor, Seed, Strategy
from .tables import retuned_summary, retuned_table


def retune(
    context: typer.Context,
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys of workloads; default: all whose best records are of an earlier toolchain or sketch."
        ),
    ] = None,
    target: Annotated[str, typer.Option("--target", "--device", help="A class of devices, as of tune.")] = "llvm",
    toolchain_before: Annotated[
        str | None, typer.Option(help="The key of the toolchain whose records count; default: that of the newest ones.")
    ] = None,
    runners_up: Annotated[
        int, typer.Option(help="How many schedules are measured again beside the winner of each workload.")
    ] = RUNNERS_UP,
    trials: Annotated[int, typer.Option(help="How many candidates a workload may have that is searched again.")] = 64,
    seconds: Annotated[float | None, typer.Option(help="Stop a workload after this many seconds.")] = None,
    stall: Annotated[int | None, typer.Option(help="Stop it after this many trials without a new best.")] = None,
    strategy: Strategy = "model",
    seed: Seed = 0,
    executor: Executor = "local",
    detach: Detach = False,
) -> None:
    """After a driver, a compiler or a sketch changed: measure winners and runners-up again, keep what holds, search the
    rest."""
    given: CommandContext = context.obj
    with given.job_connection(detach=detach) as connection:
        job = connection.client.retune(
            *(workloads or ()),
            toolchain_before=toolchain_before,
            runners_up=runners_up,
            budget=Budget(trials, seconds, stall),
            target=target,
            strategy=strategy,
            seed=seed,
            executor=executor,
        )
        if not detach:
            job = follow_submitted(given, connection, job)
        dashboard = given.dashboard(connection)
    if given.as_json:
        given.print_json(job)
    else:
        given.console.print(retuned_table(job))
        given.console.print(retuned_summary(job))
        given.console.print(f"job        {job.id} ({job.state.value})")
        given.console.print(f"dashboard  {dashboard}/jobs/{job.id}", soft_wrap=True)
    if job.error:
        given.console.print(f"error: {job.error}")
    if not detach and job.state is not JobState.SUCCEEDED:
        raise typer.Exit(Exit.FAILED)
