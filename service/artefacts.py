"""Keeps the very binaries that were measured, for records that are the fastest of their task."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..codegen.backend import CompiledKernel
from ..core.errors import NotFound
from ..core.keys import JSON
from ..db.rows import ArtefactRow
from ..workers.wire import binary_to_frame

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.artefact_store import ArtefactStore


@dataclass(frozen=True, slots=True)
class Artefacts:
    """Keeps the binaries of the fastest records. It is thread-safe. Every method raises StoreError when the database
    cannot serve. ``most_bytes`` is how much room binaries may take."""

    store: "ArtefactStore"
    most_bytes: int

    def keep(self, record_id: int, binary: CompiledKernel, binary_key: str | None) -> bool:
        """Keep ``binary``, if it is the one that a record measured, whose evidence has ``binary_key``; return whether
        it is kept."""
        sha256 = hashlib.sha256(binary.code).hexdigest()
        if sha256 != binary_key:
            return False
        (description,) = cast(list[dict[str, JSON]], binary_to_frame(binary, {}).header["binaries"])
        row = ArtefactRow(sha256, record_id, binary.format, description, binary.code)
        return self.store.keep(row, most_bytes=self.most_bytes)

    def measured_by(self, record_id: int, binary_key: str | None) -> ArtefactRow:
        """Return the binary that a record measured. Raises NotFound where it is not kept."""
        found = None if binary_key is None else self.store.find(binary_key)
        if found is None:
            raise NotFound(
                f"the binary that record {record_id} measured is not kept: those of the fastest records are. Its "
                "schedule can be exported, which builds it anew",
                field="record_id",
            )
        return found
