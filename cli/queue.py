"""``tilewright queue`` lists the tasks that run or wait."""

from typing import Annotated

import typer

from .context import CommandContext
from .fleet_tables import queue_table


def queue(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most this many.")] = 50,
) -> None:
    """List the tasks that run, then those that wait in the order in which they are to begin, then the blocked ones."""
    given: CommandContext = context.obj
    with given.client() as client:
        tasks = client.queue(limit=limit)
    given.show(tasks, queue_table(tasks) if tasks else "no task runs or waits")
