"""``tilewright workers`` lists the units of the fleet, takes them out and lets them work again."""

from collections.abc import Callable
from typing import Annotated

import typer

from ..api.client import Client
from ..api.fleet_responses import UnitOut
from .context import CommandContext
from .fleet_tables import units_table

app = typer.Typer(help="List the physical devices of the fleet and what they do; drain, release, quarantine them.")
Uuid = Annotated[str, typer.Argument(help="The unit, as `tilewright workers` lists it.")]
Reason = Annotated[str, typer.Option(help="Why; others see it.")]


@app.callback(invoke_without_command=True)
def workers(context: typer.Context) -> None:
    """List the physical devices of the fleet, their states and what they do."""
    if context.invoked_subcommand is not None:
        return
    given: CommandContext = context.obj
    with given.client() as client:
        units = client.units()
    empty = "no host has joined yet: start one with `tilewright serve` or `tilewright worker`"
    given.show(units, units_table(units) if units else empty)


@app.command()
def drain(context: typer.Context, uuid: Uuid, reason: Reason) -> None:
    """Take a unit out: its task is given back after the trial that runs, and no other begins."""
    _change(context, lambda client: client.drain(uuid, reason))


@app.command()
def release(context: typer.Context, uuid: Uuid, reason: Reason) -> None:
    """Let a unit take tasks again."""
    _change(context, lambda client: client.release(uuid, reason))


@app.command()
def quarantine(context: typer.Context, uuid: Uuid, reason: Reason) -> None:
    """Use a unit no more until it is released."""
    _change(context, lambda client: client.quarantine(uuid, reason))


def _change(context: typer.Context, change: Callable[[Client], UnitOut]) -> None:
    given: CommandContext = context.obj
    with given.client() as client:
        unit = change(client)
    given.show(unit, f"unit {unit.uuid}: {unit.state.value} ({unit.reason})")
