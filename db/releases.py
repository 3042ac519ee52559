"""Reads and writes releases, which never change, and the channels that point to them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, update

from ..core.errors import Conflict, NotFound
from .best import find_any
from .encode import now
from .rows import AnswerRow, ChannelRow, PromotionRow, ReleaseRow
from .tables import best_records, channels, promotions, release_records, releases

KEYS_AT_ONCE = 500
MOST_HISTORY = 100
"""How many promotions of a channel are shown."""
_RELEASE: Select[Any] = select(
    releases.c.number,
    releases.c.name,
    releases.c.created_at,
    releases.c.sha256,
    releases.c.entries,
    func.length(releases.c.bundle),
)


def winners(
    connection: Connection, sketches: Mapping[str, int], chosen: Callable[[AnswerRow], bool]
) -> Iterator[AnswerRow]:
    """Yield the fastest record of every workload under each conditions, of current sketches alone. ``chosen`` says
    which records count."""
    last = ""
    while True:
        query = select(best_records.c.workload_key).where(best_records.c.workload_key > last).distinct()
        keys = list(connection.execute(query.order_by(best_records.c.workload_key).limit(KEYS_AT_ONCE)).scalars())
        if not keys:
            return
        last = keys[-1]
        fastest: dict[tuple[str, str, str, str], AnswerRow] = {}
        for row in find_any(connection, keys):
            if sketches.get(row.sketch) == row.sketch_version and chosen(row):
                place = (row.workload_key, row.device_key, row.toolchain_key, row.profile)
                fastest[place] = min(fastest.get(place, row), row, key=lambda one: one.rank)
        yield from fastest.values()


def insert_release(
    connection: Connection, name: str, sha256: str, bundle: bytes, at: str, records: Sequence[int]
) -> None:
    """Store a release with the ids of its records, one for each entry. Raises Conflict for a name that is taken."""
    if connection.execute(select(releases.c.number).where(releases.c.name == name)).first() is not None:
        raise Conflict(f"there is a release {name!r}, and releases never change; choose another name", field="name")
    values = {"name": name, "created_at": at, "sha256": sha256, "entries": len(records), "bundle": bundle}
    number = connection.execute(insert(releases).values(values).returning(releases.c.number)).scalar_one()
    connection.execute(insert(release_records), [{"release": number, "record": record} for record in set(records)])


def load_release(connection: Connection, name: str) -> ReleaseRow:
    """Return a release. Raises NotFound."""
    row = connection.execute(_RELEASE.where(releases.c.name == name)).first()
    if row is None:
        raise NotFound(f"there is no release {name[:80]!r}", field="name")
    return ReleaseRow(*row)


def releases_with(connection: Connection, records: Collection[int], limit: int) -> tuple[tuple[str, int, str], ...]:
    """Return (name, record, created at) of the newest releases that hold one of these records."""
    query = (
        select(releases.c.name, release_records.c.record, releases.c.created_at)
        .join(release_records, release_records.c.release == releases.c.number)
        .where(release_records.c.record.in_(records))
        .order_by(releases.c.number.desc(), release_records.c.record)
        .limit(limit)
    )
    return tuple((row.name, row.record, row.created_at) for row in connection.execute(query))


def load_bundle(connection: Connection, name: str) -> bytes:
    """Return the bundle of a release. Raises NotFound."""
    found = connection.execute(select(releases.c.bundle).where(releases.c.name == name)).scalar()
    if found is None:
        raise NotFound(f"there is no release {name[:80]!r}", field="name")
    return bytes(found)


def page_of_releases(connection: Connection, before: int | None, limit: int) -> tuple[ReleaseRow, ...]:
    """Return releases with numbers below ``before``, newest first."""
    query = _RELEASE if before is None else _RELEASE.where(releases.c.number < before)
    rows = connection.execute(query.order_by(releases.c.number.desc()).limit(limit))
    return tuple(ReleaseRow(*row) for row in rows)


def load_channel(connection: Connection, name: str, *, lock: bool = False) -> ChannelRow:
    """Return a channel, which the migration has made. With ``lock`` nobody else changes it until the
    transaction ends."""
    query = select(channels.c.pinned).where(channels.c.name == name)
    pinned = connection.execute(query.with_for_update() if lock else query).scalar()
    rows = connection.execute(
        select(releases.c.name, promotions.c.how, promotions.c.created_at)
        .join(releases, releases.c.number == promotions.c.release)
        .where(promotions.c.channel == name)
        .order_by(promotions.c.number.desc())
        .limit(MOST_HISTORY)
    )
    return ChannelRow(name, bool(pinned), tuple(PromotionRow(*row) for row in rows))


def point(connection: Connection, channel: str, release: str, how: str) -> None:
    """Let a channel, which the caller has locked, point to a release. Raises NotFound."""
    number = load_release(connection, release).number
    values = {"channel": channel, "release": number, "how": how, "created_at": now()}
    connection.execute(insert(promotions).values(values))


def set_pinned(connection: Connection, channel: str, pinned: bool) -> None:
    """Pin a channel, which the caller has locked, or unpin it."""
    connection.execute(update(channels).where(channels.c.name == channel).values(pinned=pinned))
