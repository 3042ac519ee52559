"""Adds which records a release holds, so that a record can name its releases. Releases from before are read for it."""

import json
import struct
from collections.abc import Iterator

from alembic import op
from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Integer, PrimaryKeyConstraint, text

revision = "0013"
down_revision = "0012"
lives_with_before = True
"""A release that a program from before freezes meanwhile is not named at its records."""

NUMBER = BigInteger().with_variant(Integer, "sqlite")
HEADER, ENTRY, SLOT, LENGTH = (struct.Struct(form) for form in ("<8s5Q", "<32s2Q", "<4xI", "<32xQ"))
HEADER_BYTES, CONDITIONS_BYTES, TABLE = {1: 128, 2: 160, 3: 160, 4: 160}, 112, struct.Struct("<96x4Q")
"""By version of the bundle, whose layout ``service.bundle`` describes."""
ROWS_AT_ONCE = 1_000


def upgrade() -> None:
    op.create_table(
        "release_records",
        Column("release", NUMBER, nullable=False),
        Column("record", NUMBER, nullable=False, autoincrement=False),
        ForeignKeyConstraint(["release"], ["releases.number"], name=op.f("fk_release_records_release")),
        PrimaryKeyConstraint("release", "record", name=op.f("pk_release_records")),
    )
    op.create_index(op.f("ix_release_records_record"), "release_records", ["record"])
    connection = op.get_bind()
    add = text("INSERT INTO release_records (release, record) VALUES (:release, :record)")
    for number in connection.execute(text("SELECT number FROM releases")).scalars().all():
        bundle = bytes(
            connection.execute(
                text("SELECT bundle FROM releases WHERE number = :number"), {"number": number}
            ).scalar_one()
        )
        rows = [{"release": number, "record": record} for record in sorted(set(_records(bundle)))]
        for first in range(0, len(rows), ROWS_AT_ONCE):
            connection.execute(add, rows[first : first + ROWS_AT_ONCE])


def downgrade() -> None:
    op.drop_table("release_records")


def _records(bundle: bytes) -> Iterator[int]:
    """Yield the ids of the records in a bundle."""
    _, version, _, entries, conditions, manifest = HEADER.unpack_from(bundle)
    places = HEADER_BYTES[version] + manifest
    tables = [(places + conditions * CONDITIONS_BYTES, entries)]
    if version > 2:
        found = (TABLE.unpack_from(bundle, places + number * TABLE.size) for number in range(conditions))
        tables = [(at, slots) for at, _, slots, _ in found]
    for at, slots in tables:
        for number in range(slots):
            if version > 3:
                entry = SLOT.unpack_from(bundle, at + number * SLOT.size)[0] * 64
                offset, length = entry and entry + 40, LENGTH.unpack_from(bundle, entry)[0]
            else:
                _, offset, length = ENTRY.unpack_from(bundle, at + number * ENTRY.size)
            if offset:
                yield int(json.loads(bundle[offset : offset + length])["record_id"])
