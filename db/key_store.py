"""The users' part of the database: their keys, sessions of browsers, and the audit log."""

from . import keys
from .engine import Database
from .rows import AuditRow, KeyRow, NewKey


class KeyStore:
    """Thread-safe. Every method raises StoreError when the database cannot serve."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, new: NewKey) -> KeyRow:
        """Store a key or a session."""
        with self._database.writing() as connection:
            return keys.insert_key(connection, new)

    def good(self, key_id: str) -> KeyRow | None:
        """Return a key or session that is neither revoked nor expired; None where there is none."""
        with self._database.reading() as connection:
            return keys.load_good_key(connection, key_id)

    def list(self, *, before: int | None = None, limit: int) -> tuple[KeyRow, ...]:
        """Return keys with numbers below ``before``, newest first."""
        with self._database.reading() as connection:
            return keys.page_of_keys(connection, before=before, limit=limit)

    def revoke(self, key_id: str) -> KeyRow:
        """Revoke a key or a session; return it. Raises NotFound."""
        with self._database.writing() as connection:
            return keys.revoke_key(connection, key_id)

    def has_admin(self) -> bool:
        """Return whether there is a good key that may do everything."""
        with self._database.reading() as connection:
            return keys.has_admin(connection)

    def audit(self, row: AuditRow) -> None:
        """Add an entry to the audit log."""
        with self._database.writing() as connection:
            keys.insert_audit(connection, row)

    def audited(self, *, before: int | None = None, limit: int) -> tuple[AuditRow, ...]:
        """Return entries of the audit log with numbers below ``before``, newest first."""
        with self._database.reading() as connection:
            return keys.page_of_audit(connection, before=before, limit=limit)
