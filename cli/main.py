"""``tilewright`` has the table of commands, their common options, and how errors end them."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from .. import __version__
from ..api.client_errors import TokenRefused
from ..core.errors import TilewrightError
from ..service.settings import Settings
from . import (
    best,
    db,
    devices,
    explain,
    export,
    family,
    job,
    key,
    model,
    operators,
    queue,
    records,
    release,
    retune,
    serve,
    tenants,
    tune,
    worker,
    workers,
)
from .context import CommandContext
from .exits import Exit, exit_code

_KEY_HINT = "give one by --token, TILEWRIGHT_TOKEN, or `tilewright --url ADDRESS --token KEY key save`"
app = typer.Typer(
    name="tilewright",
    help="Schedule search for tensor kernels: tune, look up, explain and serve.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("tune")(tune.tune)
app.command("retune")(retune.retune)
app.command("best")(best.best)
app.command("explain")(explain.explain)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("worker")(worker.worker)
app.command("queue")(queue.queue)
app.command("devices")(devices.devices)
app.command("operators")(operators.operators)
app.add_typer(job.app, name="job")
app.add_typer(key.app, name="key")
app.add_typer(model.app, name="model")
app.add_typer(family.app, name="family")
app.add_typer(workers.app, name="workers")
app.add_typer(tenants.app, name="tenants")
app.add_typer(records.app, name="records")
app.add_typer(release.app, name="release")
app.add_typer(db.app, name="db")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tilewright {__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            help="A running service; default: TILEWRIGHT_URL, else the one on the database, else the command's own."
        ),
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="SQLAlchemy URL, or a path for SQLite; default: TILEWRIGHT_DATABASE_URL.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="The key to show; default: TILEWRIGHT_TOKEN, else the file of `key save`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Tune tensor kernels, look schedules up, explain them, and serve."""
    settings = Settings()
    if database is not None:
        given = database if "://" in database else f"sqlite:///{Path(database).absolute()}"
        settings = settings.model_copy(update={"database_url": given})
    if token is not None:
        settings = Settings.model_validate({**settings.model_dump(), "token": token})
    console = Console(stderr=as_json, highlight=False)
    context.obj = CommandContext(settings, url or settings.url, as_json, console)


def main() -> None:
    """Run a command. Every foreseen error ends in one line on standard error and its exit code."""
    try:
        app(standalone_mode=True)
    except TilewrightError as error:
        where = f" [{error.field}]" if error.field else ""
        hint = f"; {_KEY_HINT}" if isinstance(error, TokenRefused) else ""
        print(f"error: {error.message}{hint}{where}", file=sys.stderr)
        sys.exit(exit_code(error))
    except ValidationError as error:
        first = error.errors()[0]
        print(
            f"error: setting {'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}",
            file=sys.stderr,
        )
        sys.exit(Exit.BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
