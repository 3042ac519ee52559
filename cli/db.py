"""``tilewright db`` looks after the database itself."""

from pathlib import Path
from typing import Annotated

import typer

from .context import CommandContext

app = typer.Typer(help="Look after the database.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look after the database."""


@app.command()
def upgrade(context: typer.Context) -> None:
    """Upgrade the tables of a shared database to this program's version; an embedded one is upgraded when opened."""
    from ..service.upgrade import upgrade_database  # it loads the whole service

    given: CommandContext = context.obj
    before, now = upgrade_database(given.settings)
    if given.as_json:
        given.print_json({"before": before, "now": now})
    elif before == now:
        given.console.print(f"the database is at version {now} already")
    else:
        given.console.print(f"the database went from version {before or 'none'} to {now}")


@app.command()
def backup(
    context: typer.Context, file: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")]
) -> None:
    """Copy the whole database into one file, also while a service uses it."""
    from ..service.database_care import back_up_database

    given: CommandContext = context.obj
    size = back_up_database(given.settings, file)
    if given.as_json:
        given.print_json({"file": str(file), "bytes": size})
    else:
        given.console.print(f"{file} has the database, in {size} bytes")


@app.command()
def restore(
    context: typer.Context, file: Annotated[Path, typer.Argument(help="A file of `tilewright db backup`.")]
) -> None:
    """Make the database from a copy. It must not exist yet; on a server it must be empty."""
    from ..service.database_care import restore_database

    given: CommandContext = context.obj
    restore_database(given.settings, file)
    if given.as_json:
        given.print_json({"file": str(file)})
    else:
        given.console.print(f"the database is what it was when {file} was written")


@app.command()
def check(context: typer.Context) -> None:
    """Look whether what the database holds fits together; end with status 1 where it does not."""
    from ..service.database_care import check_database

    given: CommandContext = context.obj
    found = check_database(given.settings)
    if given.as_json:
        given.print_json({"faults": [*found]})
    else:
        for fault in found or ["the database is well"]:
            given.console.print(fault)
    if found:
        raise typer.Exit(1)
