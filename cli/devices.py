"""``tilewright devices`` lists what kernels are timed on."""

import typer

from .context import CommandContext
from .tables import device_panel


def devices(context: typer.Context) -> None:
    """List the devices attached to the service and those that its records come from, with measured peaks."""
    given: CommandContext = context.obj
    with given.client() as client:
        found = client.devices()
    if given.as_json:
        given.print_json(found)
    else:
        for device in found:
            given.console.print(device_panel(device))
