"""``tilewright tenants`` lists who shares the fleet, and sets their weights and quotas."""

from typing import Annotated

import typer

from .context import CommandContext
from .fleet_tables import tenants_table

app = typer.Typer(help="List the tenants that share the fleet; set weights and quotas.")


@app.callback(invoke_without_command=True)
def tenants(context: typer.Context) -> None:
    """List the tenants with their weights, their quotas and what they have now."""
    if context.invoked_subcommand is not None:
        return
    given: CommandContext = context.obj
    with given.client() as client:
        found = client.tenants()
    given.show(found, tenants_table(found))


@app.command("set")
def set_tenant(
    context: typer.Context,
    name: str,
    weight: Annotated[float, typer.Option(help="Its share of the units, against that of the others.")] = 1.0,
    most_units: Annotated[
        int | None, typer.Option(min=0, help="How many units its tasks may hold at once; default: no quota.")
    ] = None,
    most_queued: Annotated[
        int | None, typer.Option(min=0, help="How many of its tasks may wait at once; default: no quota.")
    ] = None,
) -> None:
    """Add a tenant or change it. What is not given has its default again."""
    given: CommandContext = context.obj
    with given.client() as client:
        tenant = client.set_tenant(name, weight=weight, most_units=most_units, most_queued=most_queued)
    given.show(tenant, tenants_table([tenant]))
