"""``tilewright worker`` searches tasks on the devices of this host, without HTTP."""

from typing import Annotated

import typer

from .context import CommandContext


def worker(
    context: typer.Context,
    ray: Annotated[
        str | None, typer.Option(help="The Ray cluster whose devices are used; default: TILEWRIGHT_RAY_ADDRESS.")
    ] = None,
) -> None:
    """Search tasks of a shared PostgreSQL database on the devices of this host, until SIGTERM or SIGINT. Tasks are
    given back after the trial that runs, and others go on with them."""
    from ..service.standalone import work_until_stopped  # it loads the whole service

    given: CommandContext = context.obj
    settings = given.settings if ray is None else given.settings.model_copy(update={"ray_address": ray})
    say = given.console.print
    work_until_stopped(
        settings,
        ready=lambda: say("working  (Ctrl-C, or SIGTERM, stops after the trials that run)", soft_wrap=True),
        stopping=lambda: say("stopping after the trials that run", soft_wrap=True),
    )
