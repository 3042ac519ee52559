"""``tilewright model`` adds, lists, shows, tunes and times models that users run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..api.client import Client
from ..api.model_requests import ModelTimingIn
from ..api.model_responses import ModelOut
from ..core.budget import Budget
from ..core.errors import InvalidParameter, NotFound
from ..core.schedule import Schedule
from ..service.views import JobState
from .context import CommandContext
from .exits import Exit
from .follow import follow_submitted
from .model_tables import expectation, model_summary, models_table
from .options import Detach, DeviceClass, Strategy

if TYPE_CHECKING:
    from .model_program import ModelProgram

app = typer.Typer(help="Whole models: add one, tune it by one job, see what is tuned, time it.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="An ONNX model, or a StableHLO module (.mlir, .mlirbc, .stablehlo).")]
Dims = Annotated[list[str] | None, typer.Option("--dim", help="The extent of a named dimension, NAME=NUMBER.")]
Key = Annotated[str, typer.Argument(help="The key of a model, or the beginning of it that no other key has.")]
BASELINE = "default-schedules"


@app.command("add")
def add(
    context: typer.Context,
    file: File,
    name: Annotated[str | None, typer.Option(help="What it is called; default: the name of the file.")] = None,
    dim: Dims = None,
    target: Annotated[str, typer.Option(help="What it is cut into kernels for: llvm, cuda, cuda:sm_90a, …")] = "llvm",
) -> None:
    """Cut a model into workloads and store them with how often each occurs. Weights stay here."""
    from ..service.targets import compiled_for  # these load the compiler
    from .model_program import read_model

    given: CommandContext = context.obj
    model = read_model(file, dim or [], compiled_for(target, ()).device.target)
    with given.client() as client:
        added = _add(client, model, name or file.stem)
    _show(given, added)


@app.command("list")
def list_models(context: typer.Context) -> None:
    """List the models, newest first."""
    given: CommandContext = context.obj
    with given.client() as client:
        found = list(client.models())
    given.show(found, models_table(found))


@app.command("show")
def show(
    context: typer.Context,
    key: Key,
    target: Annotated[
        str | None, typer.Option(help="The device that is meant; default: that of the newest job.")
    ] = None,
) -> None:
    """Show the kernels of a model: how often each occurs, its share of the time, whether it is tuned."""
    given: CommandContext = context.obj
    with given.client() as client:
        found = client.model(_full_key(client, key), target=target)
    _show(given, found)


@app.command("tune")
def tune(
    context: typer.Context,
    key: Key,
    trials: Annotated[int, typer.Option(help="How many candidates are measured, of all workloads together.")] = 512,
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds of all workloads together.")] = None,
    stall: Annotated[int | None, typer.Option(help="Leave a workload after so many trials without a new best.")] = None,
    runs: Annotated[
        float | None, typer.Option(help="How often the model is to run; measuring that this does not pay for is left.")
    ] = None,
    target: DeviceClass = "llvm",
    strategy: Strategy = "model",
    detach: Detach = False,
) -> None:
    """Tune a model by one job. Trials go to the workload where they are expected to save most."""
    given: CommandContext = context.obj
    with given.job_connection(detach=detach) as connection:
        client = connection.client
        model_key = _full_key(client, key)
        budget = Budget(trials, seconds, stall, runs)
        if not given.as_json:
            given.console.print(expectation(client.expect_of_model(model_key, budget=budget, target=target)))
        job = client.tune_model(model_key, budget=budget, target=target, strategy=strategy)
        if not detach:
            job = follow_submitted(given, connection, job)
        model = client.model(model_key)
        dashboard = given.dashboard(connection)
    _show(given, model)
    if not given.as_json:
        given.console.print(f"job        {job.id} ({job.state.value})")
        given.console.print(f"dashboard  {dashboard}/models/{model.key}", soft_wrap=True)
    if not detach and job.state is not JobState.SUCCEEDED:
        given.console.print(f"error: {job.error}")
        raise typer.Exit(Exit.FAILED)


@app.command("bench")
def bench(
    context: typer.Context,
    file: File,
    dim: Dims = None,
    runs: Annotated[int, typer.Option(min=1, help="How often the model runs on either side.")] = 30,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Whether the service keeps the times.")] = True,
) -> None:
    """Time whole runs of a model on this processor: with the schedules that are known, and with default ones."""
    from ..runtime.devices import device_info  # these load the compiler
    from .model_program import read_model, time_programs

    given: CommandContext = context.obj
    info = device_info()
    model = read_model(file, dim or [], info.target)
    with given.client() as client:
        schedules = known_schedules(client, list(model.program.tasks))
        seconds, default_seconds, kernels = time_programs(model, schedules, runs)
        tuned = sum(kernels[key].tuned for key in model.program.kernel_keys)
        timing = ModelTimingIn(
            device_key=info.key,
            seconds=seconds,
            baseline=BASELINE,
            baseline_seconds=default_seconds,
            tuned_kernels=tuned,
        )
        if keep:
            client.keep_model_timing(_add(client, model, file.stem).key, timing)
    if given.as_json:
        given.print_json(timing)
    else:
        given.console.print(f"{seconds * 1e3:.4g} ms a run, {tuned} of {len(model.program.kernels)} kernels tuned")
        given.console.print(f"{default_seconds * 1e3:.4g} ms with default schedules, {default_seconds / seconds:.2f}x")


def known_schedules(client: Client, keys: list[str]) -> dict[str, Schedule]:
    """Return the schedules that a service knows, by key of the workload."""
    found = [best for best in client.best_of_many(keys, relax=("profile", "toolchain", "device")) if best is not None]
    return {
        best.workload_key: Schedule.of(best.schedule.sketch, best.schedule.version, best.schedule.knobs)
        for best in found
    }


def _add(client: Client, model: "ModelProgram", name: str) -> ModelOut:
    labels = model.labels()
    workloads = [(task.workload, task.count, labels[key]) for key, task in model.program.tasks.items()]
    if not workloads:
        raise InvalidParameter("nothing in this model is for kernels", field="file")
    return client.add_model(name, workloads, model.foreign_calls())


def _full_key(client: Client, key: str) -> str:
    if len(key) == 64:
        return key
    found = [model.key for model in client.models() if model.key.startswith(key)]
    if len(found) != 1:
        raise NotFound(f"{len(found)} models have a key that begins with {key[:64]!r}; needed: 1", field="key")
    return found[0]


def _show(given: CommandContext, model: ModelOut) -> None:
    given.show(model, model_summary(model))
