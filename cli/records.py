"""``tilewright records`` carries results from one database to another."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InvalidParameter
from .context import CommandContext

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
    if given.as_json:
        given.print_json(counts)
    else:
        given.console.print(f"{counts.imported} records imported, {counts.known} were known")
