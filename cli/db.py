"""``tilewright db`` looks after the database itself."""

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
