"""``tilewright serve``: run the service."""

from typing import Annotated

import typer

from ..api import server
from .context import Context


def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: TILEWRIGHT_HOST or 127.0.0.1.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Default: TILEWRIGHT_PORT.")] = None,
) -> None:
    """Serve the API and the dashboard until interrupted; unfinished jobs go on where they were."""
    given: Context = context.obj
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = given.settings.model_copy(update=changes)
    given.console.print(f"dashboard and API on http://{settings.host}:{settings.port}  (Ctrl-C stops)", soft_wrap=True)
    server.serve(settings)
