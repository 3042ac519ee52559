"""``tilewright records`` carries results from one database to another."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..api.requests import ExpressionIn
from ..core.errors import InvalidParameter
from ..service.tuning_logs import FORMS, device_named, read_tuning_log
from ..service.views import TaskSpec
from .context import CommandContext
from .expression import read_task
from .options import Operator, Parameters, WorkloadFile

app = typer.Typer(help="Export and import records as JSON lines.", no_args_is_help=True)


@app.command("export")
def export_records(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="Where to write; default: standard output.")] = None,
) -> None:
    """Write every record with its workload, device and toolchain."""
    given: CommandContext = context.obj
    with given.client() as client:
        lines = client.export_records()
        if file is None:
            sys.stdout.writelines(line + "\n" for line in lines)
            return
        count = 0
        try:
            with file.open("w", encoding="utf-8") as out:
                for line in lines:
                    out.write(line + "\n")
                    count += 1
        except OSError as error:
            raise InvalidParameter(f"cannot write {file}: {error.strerror}", field="file") from error
    given.console.print(f"{count} lines written to {file}")


@app.command("import")
def import_records(context: typer.Context, file: Path) -> None:
    """Read records that another database exported; those already there stay as they are."""
    given: CommandContext = context.obj
    try:
        with file.open(encoding="utf-8") as lines, given.client() as client:
            counts = client.import_records(lines)
    except OSError as error:
        raise InvalidParameter(f"cannot read {file}: {error.strerror}", field="file") from error
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"{file} is not a text file: {error.reason}", field="file") from error
    given.show(counts, f"{counts.imported} records imported, {counts.known} were known")


@app.command("import-log")
def import_log(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The log.")],
    operator: Operator = None,
    parameters: Parameters = None,
    workload: WorkloadFile = None,
    form: Annotated[str, typer.Option("--format", help=f"What wrote the log: {', '.join(FORMS)}.")] = FORMS[0],
    target: Annotated[
        str, typer.Option(help="What it ran on: llvm, cuda, cuda:sm_90a, …, or the key of a device.")
    ] = "llvm",
    cache: Annotated[
        str | None, typer.Option(help="warm or cold: what the caches held; default: as jobs on such a device.")
    ] = None,
) -> None:
    """Read what another autotuner measured. Searches learn from it, and no look-up serves it."""
    from ..service.wiring import CACHES, operator_named  # it loads what searches need, and no other command does

    given: CommandContext = context.obj
    asked = read_task(operator, parameters or [], workload)
    if isinstance(asked, ExpressionIn):
        given_parameters, name = asked.parameters or {}, asked.operator or ""
        task = TaskSpec(operator_named(name).workload(given_parameters), name, given_parameters)
    else:
        task = TaskSpec(asked)
    if cache not in (None, *CACHES):
        raise InvalidParameter(f"{cache!r} is no state of caches; allowed: {', '.join(CACHES)}", field="cache")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidParameter(f"cannot read {file}: {error.strerror}", field="file") from error
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"{file} is not a text file: {error.reason}", field="file") from error
    with given.client() as client:
        known = [device.model_dump(mode="json") for device in client.devices()]
        log = read_tuning_log(text, form, task, device_named(target, known), cache)
        counts = client.import_records(log.lines) if log.lines else None
    added, before = (0, 0) if counts is None else (counts.imported, counts.known)
    if given.as_json:
        given.print_json({"imported": added, "known": before, "refused": dict(log.refused)})
        return
    given.console.print(f"{added} records imported, {before} were known")
    for reason, count in log.refused.items():
        given.console.print(f"{count} rows not taken: {reason}")
