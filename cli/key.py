"""``tilewright key`` makes, lists and revokes the keys that programs and people show to a service."""

from typing import Annotated

import typer
from rich.table import Table

from ..api.credentials import store_token
from ..api.key_responses import KeyOut
from ..core.errors import InvalidParameter
from .context import CommandContext

app = typer.Typer(help="Make, list and revoke the keys of users; say who you are.", no_args_is_help=True)


@app.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Whose it is, for people.")],
    scope: Annotated[
        list[str], typer.Option(help="read, submit, worker or admin; may be given often; default: read and submit.")
    ] = ["read", "submit"],  # noqa: B006 - the parser of options copies it
    tenant: Annotated[str | None, typer.Option(help="Whose rows it sees and makes; default: your own tenant.")] = None,
    requests_per_second: Annotated[float | None, typer.Option(help="How many requests it may send.")] = None,
    days: Annotated[float | None, typer.Option(help="How long it is good; default: until it is revoked.")] = None,
) -> None:
    """Make a key and print it. Nobody can look at it again."""
    given: CommandContext = context.obj
    with given.client() as client:
        made = client.create_key(name, scope, tenant=tenant, requests_per_second=requests_per_second, days=days)
    if given.as_json:
        given.print_json(made)
    else:
        print(made.secret)


@app.command("list")
def list_keys(context: typer.Context) -> None:
    """List all keys, without their secrets."""
    given: CommandContext = context.obj
    with given.client() as client:
        keys = list(client.keys())
    if given.as_json:
        given.print_json(keys)
        return
    table = Table("id", "name", "tenant", "scopes", "made", "good until", box=None, header_style="dim", pad_edge=False)
    for key in keys:
        table.add_row(key.id, key.name, key.tenant, ", ".join(key.scopes), key.created_at[:10], _until(key))
    given.console.print(table)


@app.command("revoke")
def revoke(context: typer.Context, key_id: Annotated[str, typer.Argument(help="Its id: what follows tw_.")]) -> None:
    """Revoke a key. It is refused within a second."""
    given: CommandContext = context.obj
    with given.client() as client:
        key = client.revoke_key(key_id)
    given.show(key, f"revoked {key.id} ({key.name})")


@app.command("who")
def who(context: typer.Context) -> None:
    """Say as whom the service knows you, and what you may do."""
    given: CommandContext = context.obj
    with given.client() as client:
        caller = client.caller()
    if given.as_json:
        given.print_json(caller)
    else:
        name = caller.name or "a program of this machine"
        given.console.print(f"{name}, tenant {caller.tenant}: {', '.join(caller.scopes)}")


@app.command("save")
def save(context: typer.Context) -> None:
    """Keep the key of --token for the service of --url in a file that nobody else can read."""
    given: CommandContext = context.obj
    token = given.settings.shown_token
    if given.url is None or token is None:
        raise InvalidParameter("say which: tilewright --url ADDRESS --token KEY key save", field="token")
    path = store_token(given.url, token, given.settings)
    given.console.print(f"kept in {path}", soft_wrap=True)


def _until(key: KeyOut) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at[:10]}"
    return "-" if key.expires_at is None else key.expires_at[:10]
