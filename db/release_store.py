"""The part of the store for releases: every use is one method, and every method is one transaction."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from . import releases as rows
from .engine import Database
from .rows import AnswerRow, ChannelRow, ReleaseRow


class ReleaseStore:
    """Thread-safe. Every method raises StoreError when the database cannot serve, and StorageFull when it is full."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def winners(self, sketches: Mapping[str, int], chosen: Callable[[AnswerRow], bool]) -> list[AnswerRow]:
        """Return the fastest record of every workload under each conditions, of ``sketches`` in these versions, among
        the records that are ``chosen``. On PostgreSQL records that come meanwhile may be among them."""
        with self._database.reading() as connection:
            return list(rows.winners(connection, sketches, chosen))

    def add(self, name: str, sha256: str, bundle: bytes, at: str, records: Sequence[int]) -> ReleaseRow:
        """Store a release, for ever as it is, with the ids of its records, one for each entry. Raises Conflict for a
        name that is taken."""
        with self._database.writing() as connection:
            rows.insert_release(connection, name, sha256, bundle, at, records)
            return rows.load_release(connection, name)

    def release(self, name: str) -> ReleaseRow:
        """Return a release. Raises NotFound."""
        with self._database.reading() as connection:
            return rows.load_release(connection, name)

    def releases_with(self, records: Collection[int], *, limit: int) -> tuple[tuple[str, int, str], ...]:
        """Return (name, record, created at) of the newest releases that hold one of these records."""
        with self._database.reading() as connection:
            return rows.releases_with(connection, records, limit)

    def bundle(self, name: str) -> bytes:
        """Return the bundle of a release. Raises NotFound."""
        with self._database.reading() as connection:
            return rows.load_bundle(connection, name)

    def releases(self, *, before: int | None, limit: int) -> tuple[ReleaseRow, ...]:
        """Return releases with numbers below ``before``, newest first."""
        with self._database.reading() as connection:
            return rows.page_of_releases(connection, before, limit)

    def channel(self, name: str) -> ChannelRow:
        """Return a channel with its history."""
        with self._database.reading() as connection:
            return rows.load_channel(connection, name)

    @contextmanager
    def changing(self, channel: str) -> Iterator["ChannelChange"]:
        """Give a channel that nobody else changes during the block. What the block did is stored as a whole."""
        with self._database.writing() as connection:
            yield ChannelChange(connection, rows.load_channel(connection, channel, lock=True))


class ChannelChange:
    """Changes one channel. ``before`` is what it was."""

    def __init__(self, connection: Connection, before: ChannelRow) -> None:
        self._connection = connection
        self.before = before

    def point(self, release: str, how: str) -> None:
        """Let the channel point to a release. Raises NotFound."""
        rows.point(self._connection, self.before.name, release, how)

    def pin(self, pinned: bool) -> None:
        """Pin the channel, or unpin it."""
        rows.set_pinned(self._connection, self.before.name, pinned)

    def pointed_to(self, channel: str) -> frozenset[str]:
        """Return the releases that another channel pointed to."""
        return frozenset(at.release for at in rows.load_channel(self._connection, channel).history)
