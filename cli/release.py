"""``tilewright release`` freezes best schedules under a name, and leads releases through channels."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..api.release_responses import ChangedEntryOut, ChannelOut, ReleaseOut
from ..core.errors import InvalidParameter, NotFound
from ..service.bundle import HEADER, Bundle
from .context import CommandContext

app = typer.Typer(help="Freeze best schedules under a name; compare, promote and fetch such releases.")
Name = Annotated[str, typer.Argument(help="The release's name.")]
Channel = Annotated[str, typer.Argument(help="canary or stable.")]


@app.command("make")
def make(
    context: typer.Context,
    name: Name,
    device: Annotated[str | None, typer.Option(help="Only of the device with this key.")] = None,
    toolchain: Annotated[str | None, typer.Option(help="Only of the toolchain with this key.")] = None,
    profile: Annotated[str | None, typer.Option(help="Only of this measuring profile.")] = None,
) -> None:
    """Freeze the best schedules that are known now. A release never changes."""
    given: CommandContext = context.obj
    with given.client() as client:
        made = client.freeze(name, device_key=device, toolchain_key=toolchain, profile=profile)
    _show_releases(given, [made])


@app.command("list")
def list_releases(context: typer.Context) -> None:
    """List releases, newest first."""
    given: CommandContext = context.obj
    with given.client() as client:
        _show_releases(given, list(client.releases()))


@app.command("diff")
def diff(context: typer.Context, name: Name, against: Annotated[str, typer.Argument(help="An older one.")]) -> None:
    """Say what is other in a release than in another one."""
    given: CommandContext = context.obj
    with given.client() as client:
        found = client.compare(name, against)
    if given.as_json:
        given.print_json(found)
        return
    given.console.print(f"{found.changed} changed, {found.added} added, {found.removed} removed, {found.same} the same")
    for kind, entries in (
        ("changed", found.changed_entries),
        ("added", found.added_entries),
        ("removed", found.removed_entries),
    ):
        if entries:
            given.console.print(_changes(kind, entries))


@app.command("fetch")
def fetch(
    context: typer.Context,
    name: Name,
    file: Annotated[Path, typer.Argument(help="Where the bundle goes.")],
    header: Annotated[bool, typer.Option("--header", help="Write the reader for C beside it.")] = False,
) -> None:
    """Write a release as one file that answers look-ups without a service. With
    TILEWRIGHT_RELEASE_PUBLIC_KEY its signature is checked (by TILEWRIGHT_RELEASE_KEY that of an old one)."""
    given: CommandContext = context.obj
    try:
        with given.client() as client:
            release = client.fetch_bundle(name, file, **_keys(given))
        if header:
            file.with_name(HEADER.name).write_bytes(HEADER.read_bytes())
    except OSError as error:
        raise InvalidParameter(f"cannot write {file}: {error.strerror}", field="file") from error
    _show_releases(given, [release])


@app.command("find")
def find(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A bundle.")],
    workload_key: Annotated[str, typer.Argument(help="A workload key.")],
    target: Annotated[str, typer.Option(help="Which device of this machine: llvm, cuda, cuda:1.")] = "llvm",
) -> None:
    """Look a schedule up in a bundle, without a service, for this machine."""
    from ..service.identity import who_am_i  # it loads the code generators

    given: CommandContext = context.obj
    me = who_am_i(target)
    try:
        bundle = Bundle.open(file, **_keys(given))
    except OSError as error:
        raise InvalidParameter(f"cannot read {file}: {error.strerror}", field="file") from error
    with bundle:
        found = bundle.find(workload_key, me.device_key or "", me.toolchain_key or "", me.profile)
    if found is None:
        raise NotFound("the bundle has no schedule of this workload for this device, toolchain and profile")
    given.console.print_json(json.dumps(found))


@app.command("key")
def key(context: typer.Context) -> None:
    """Show the public key that the service signs releases for, to set TILEWRIGHT_RELEASE_PUBLIC_KEY to on clients."""
    given: CommandContext = context.obj
    with given.client() as client:
        found = client.release_key()
    given.show(found, found.public_key)


def _keys(given: CommandContext) -> dict[str, Any]:
    """Return what bundles are checked with."""
    secret = given.settings.release_key
    old = None if secret is None else secret.get_secret_value().encode()
    return {"public_key": given.settings.release_public_key, "key": old}


@app.command("channels")
def channels(context: typer.Context) -> None:
    """Show which releases the channels point to."""
    given: CommandContext = context.obj
    with given.client() as client:
        _show_channels(given, client.channels())


@app.command("promote")
def promote(context: typer.Context, channel: Channel, name: Name) -> None:
    """Let a channel point to a release. The channel stable takes what canary has pointed to."""
    given: CommandContext = context.obj
    with given.client() as client:
        _show_channels(given, [client.promote(channel, name)])


@app.command("rollback")
def roll_back(context: typer.Context, channel: Channel) -> None:
    """Let a channel point to the release before the present one."""
    given: CommandContext = context.obj
    with given.client() as client:
        _show_channels(given, [client.roll_back(channel)])


@app.command("pin")
def pin(context: typer.Context, channel: Channel) -> None:
    """Pin a channel to the release that it points to."""
    given: CommandContext = context.obj
    with given.client() as client:
        _show_channels(given, [client.pin(channel)])


@app.command("unpin")
def unpin(context: typer.Context, channel: Channel) -> None:
    """Let a channel take other releases again."""
    given: CommandContext = context.obj
    with given.client() as client:
        _show_channels(given, [client.unpin(channel)])


def _show_releases(given: CommandContext, releases: Iterable[ReleaseOut]) -> None:
    if given.as_json:
        given.print_json(releases)
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("release", "schedules", "bytes", "created"):
        table.add_column(column, no_wrap=True)
    table.add_column("SHA-256", overflow="fold")
    for release in releases:
        size = str(release.bundle_bytes)
        table.add_row(release.name, str(release.entries), size, release.created_at[:19], release.sha256)
    given.console.print(table)


def _show_channels(given: CommandContext, channels: Iterable[ChannelOut]) -> None:
    if given.as_json:
        given.print_json(channels)
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("channel", "release", "pinned", "before"):
        table.add_column(column)
    for channel in channels:
        before = ", ".join(at.release for at in channel.history[1:4])
        table.add_row(channel.name, channel.release or "-", "yes" if channel.pinned else "no", before)
    given.console.print(table)


def _changes(kind: str, entries: Iterable[ChangedEntryOut]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column(kind, overflow="fold")
    for column in ("before", "after", "speed-up"):
        table.add_column(column, justify="right", no_wrap=True)
    for entry in entries:
        times = ("-" if s is None else f"{1e6 * s:.4g} µs" for s in (entry.before_seconds, entry.after_seconds))
        table.add_row(entry.workload_key, *times, f"{entry.speedup:.3f}" if entry.speedup else "-")
    return table
