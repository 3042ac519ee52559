"""``tilewright serve`` runs the service."""

from typing import Annotated

import typer

from ..api.local_service import serve_when_free
from .context import CommandContext


def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; default: TILEWRIGHT_HOST or 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port to listen on; default: TILEWRIGHT_PORT or 8421.")
    ] = None,
    jobs: Annotated[
        bool | None,
        typer.Option(
            "--jobs/--no-jobs", help="Search tasks on the devices of this host, or only answer; default: search."
        ),
    ] = None,
) -> None:
    """Serve the API and the dashboard until interrupted; unfinished jobs are resumed. A service that others can reach
    wants keys (`tilewright key`), and needs an administrator: a key, or TILEWRIGHT_TOKEN."""
    given: CommandContext = context.obj
    changes = {name: value for name, value in (("host", host), ("port", port), ("run_jobs", jobs)) if value is not None}
    settings = given.settings.model_copy(update=changes)

    def started(url: str) -> None:
        others = " and on all other addresses of this machine" if settings.host in ("0.0.0.0", "::") else ""
        given.console.print(f"dashboard and API on {url}{others}  (Ctrl-C stops)", soft_wrap=True)

    serve_when_free(settings, started)
