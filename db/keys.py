"""Reads and writes keys of users, sessions of browsers, and the audit log. Secrets never come here: a row has the
SHA-256 of one."""

from typing import Any

from sqlalchemy import Connection, insert, or_, select, update
from sqlalchemy.engine import RowMapping

from ..core.errors import NotFound
from .encode import now
from .rows import AuditRow, KeyRow, NewKey
from .tables import api_keys, audit_entries
from .tenants import keep_tenant
from .visibility import visible

KEY, SESSION = "key", "session"


def insert_key(connection: Connection, new: NewKey) -> KeyRow:
    """Store a key, and its tenant where that is new; return it."""
    keep_tenant(connection, new.tenant)
    values: dict[str, Any] = {name: getattr(new, name) for name in NewKey.__dataclass_fields__}
    values |= {"scopes": list(new.scopes), "created_at": now()}
    connection.execute(insert(api_keys).values(values))
    found = load_key(connection, new.id)
    assert found is not None
    return found


def load_key(connection: Connection, key_id: str) -> KeyRow | None:
    """Return a key, whether it is still good or not; None where there is none."""
    row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).mappings().first()
    return None if row is None else _key_row(row)


def load_good_key(connection: Connection, key_id: str) -> KeyRow | None:
    """Return a key or session that is neither revoked nor expired; a session ends with the key that opened it."""
    found = load_key(connection, key_id)
    if found is None or not _is_good(found):
        return None
    if found.parent is not None:
        parent = load_key(connection, found.parent)
        if parent is None or not _is_good(parent):
            return None
    return found


def _is_good(row: KeyRow) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now())


def page_of_keys(connection: Connection, *, before: int | None, limit: int) -> tuple[KeyRow, ...]:
    """Return keys, but no sessions, with numbers below ``before``, newest first."""
    query = select(api_keys).where(api_keys.c.kind == KEY, visible(api_keys.c.tenant))
    if before is not None:
        query = query.where(api_keys.c.number < before)
    found = connection.execute(query.order_by(api_keys.c.number.desc()).limit(limit)).mappings()
    return tuple(_key_row(row) for row in found)


def revoke_key(connection: Connection, key_id: str) -> KeyRow:
    """Revoke a key or a session; what was revoked stays so. Raises NotFound."""
    open_key = update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
    connection.execute(open_key.values(revoked_at=now()))
    found = load_key(connection, key_id)
    if found is None:
        raise NotFound(f"there is no key {key_id[:80]!r}", field="key_id")
    return found


def has_admin(connection: Connection) -> bool:
    """Return whether there is a good key that may do everything."""
    good = select(api_keys.c.scopes).where(
        api_keys.c.kind == KEY,
        api_keys.c.revoked_at.is_(None),
        or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now()),
    )
    return any("admin" in scopes for scopes in connection.execute(good).scalars())


def insert_audit(connection: Connection, row: AuditRow) -> None:
    """Add an entry of the audit log; its ``number`` and time are made here."""
    values = {name: getattr(row, name) for name in AuditRow.__dataclass_fields__ if name not in ("number", "at")}
    connection.execute(insert(audit_entries).values(**values, at=now()))


def page_of_audit(connection: Connection, *, before: int | None, limit: int) -> tuple[AuditRow, ...]:
    """Return entries of the audit log with numbers below ``before``, newest first."""
    query = select(audit_entries).where(visible(audit_entries.c.tenant))
    if before is not None:
        query = query.where(audit_entries.c.number < before)
    found = connection.execute(query.order_by(audit_entries.c.number.desc()).limit(limit)).mappings()
    return tuple(AuditRow(**row) for row in found)


def _key_row(row: RowMapping) -> KeyRow:
    return KeyRow(**{**row, "scopes": tuple(row["scopes"])})
