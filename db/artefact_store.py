"""The part of the store for artefacts: the binaries of the fastest records, by the hash of their content.

They lie in the database and not in a folder beside it. Several hosts that share a PostgreSQL share no folder. A copy of
the database has them, and they come and go with their records in one transaction. Only binaries that were the best of
their task are kept, of some 10 to 200 kB each, packed. Beyond a limit the oldest are dropped, but never those of best
records and of releases.
"""

import zlib
from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, insert, or_, select, update

from .encode import now
from .engine import Database
from .rows import ArtefactRow
from .tables import artefacts, best_records, trials

MOST_CODE_BYTES = 16 << 20
"""A binary that is larger is not kept."""
AT_ONCE = 500
_IS_BEST = (
    select(best_records.c.record_id)
    .join(trials, trials.c.id == best_records.c.record_id)
    .where(func.coalesce(trials.c.adopted_from, trials.c.id) == artefacts.c.record_id)
    .exists()
)


class ArtefactStore:
    """Thread-safe. Every method raises StoreError when the database cannot serve, and StorageFull when it is full."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, artefact: ArtefactRow, *, most_bytes: int) -> bool:
        """Keep a binary, and drop others until all that are kept take ``most_bytes`` at most; return whether it was
        kept. One that is there already stays, with the record that it came from first."""
        packed = zlib.compress(artefact.code)
        if len(artefact.code) > MOST_CODE_BYTES or len(packed) > most_bytes:
            return False
        with self._database.writing() as connection:
            known = select(artefacts.c.number).where(artefacts.c.sha256 == artefact.sha256)
            if connection.execute(known).first() is None:
                connection.execute(
                    insert(artefacts).values(
                        sha256=artefact.sha256,
                        record_id=artefact.record_id,
                        bytes=len(packed),
                        created_at=now(),
                        format=artefact.format,
                        description=artefact.description,
                        code=packed,
                    )
                )
                _trim(connection, most_bytes)
        return True

    def find(self, sha256: str) -> ArtefactRow | None:
        """Return a binary by the hash of its code; None where it is not kept."""
        columns = (artefacts.c[name] for name in ("sha256", "record_id", "format", "description", "code"))
        with self._database.reading() as connection:
            row = connection.execute(select(*columns).where(artefacts.c.sha256 == sha256)).first()
        if row is None:
            return None
        return ArtefactRow(row.sha256, row.record_id, row.format, row.description, zlib.decompress(row.code))

    def pin(self, record_ids: Sequence[int]) -> None:
        """Keep the binaries of records for ever, since they are released."""
        with self._database.writing() as connection:
            for start in range(0, len(record_ids), AT_ONCE):
                some = record_ids[start : start + AT_ONCE]
                origin = select(func.coalesce(trials.c.adopted_from, trials.c.id)).where(trials.c.id.in_(some))
                chosen = or_(artefacts.c.record_id.in_(some), artefacts.c.record_id.in_(origin))
                connection.execute(update(artefacts).where(chosen).values(pinned=True))


def _trim(connection: Connection, most_bytes: int) -> None:
    """Drop the oldest binaries that neither a best record nor a release has, until the rest fits."""
    total = connection.execute(select(func.coalesce(func.sum(artefacts.c.bytes), 0))).scalar_one()
    if total <= most_bytes:
        return
    free = select(artefacts.c.number, artefacts.c.bytes).where(~artefacts.c.pinned, ~_IS_BEST)
    dropped = []
    for number, size in connection.execute(free.order_by(artefacts.c.number)):
        if total <= most_bytes:
            break
        total -= size
        dropped.append(number)
    for start in range(0, len(dropped), AT_ONCE):
        connection.execute(delete(artefacts).where(artefacts.c.number.in_(dropped[start : start + AT_ONCE])))
