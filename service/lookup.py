"""Looks the best schedule up.

Identity parts that a query leaves out are those of this machine: its device, its toolchain, and a warm cache. When no
record matches all of them, they are relaxed one after the other, the least important first: the measuring profile (the
same kernel, timed in another way), then the toolchain (the same device, built in another way), then the device.
``match`` names the parts in which the record that was found differs from the query.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import NotFound
from ..core.record import MeasuredOn
from ..core.target import Profile
from ..db.store import RecordStore
from .convert import best_view, distance
from .views import BestView

MAX_NEAREST = 3
"""How many near workloads the error of a miss names."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Says what is looked up. A part that is None is that of this machine."""

    workload_key: str
    device_key: str | None = None
    toolchain_key: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class LocalIdentity:
    """Holds the identity parts of this machine. The keys are None where it has no device."""

    device_key: str | None = None
    toolchain_key: str | None = None
    profile: str = str(Profile())

    @classmethod
    def of(cls, measured_on: MeasuredOn | None) -> "LocalIdentity":
        """Return the identity of what jobs are measured on."""
        if measured_on is None:
            return cls()
        return cls(measured_on.device.key, measured_on.toolchain.key, str(measured_on.profile))


def find_best(store: RecordStore, query: RecordQuery, local: LocalIdentity) -> BestView:
    """Return the fastest of the records that match best. Raises NotFound."""
    device = query.device_key or local.device_key
    toolchain = query.toolchain_key or local.toolchain_key
    profile = query.profile or local.profile
    row = store.best(query.workload_key, device_key=device, toolchain_key=toolchain, profile=profile)
    if row is None:
        raise NotFound(f"no timed record of workload {query.workload_key}", field="workload_key")
    identity = row.record.identity
    parts = (
        ("profile", profile, identity.profile),
        ("toolchain", toolchain, identity.toolchain_key),
        ("device", device, identity.device_key),
    )
    differing = tuple(name for name, asked, found in parts if asked is not None and asked != found)
    return best_view(row, differing or ("exact",))


def miss_error(
    store: RecordStore, query: RecordQuery, operator: str | None, parameters: Mapping[str, object] | None
) -> NotFound:
    """Return the error for a workload without a timed record. It names the nearest workloads of the same operator."""
    if operator is None:
        origin = store.origin(query.workload_key)
        if origin is not None:
            operator, parameters = origin
    message = f"no timed record of workload {query.workload_key}"
    if operator is None:
        return NotFound(message, field="workload_key")
    near = sorted(store.near(operator, limit=200), key=lambda row: distance(parameters or {}, row.parameters))
    if not near:
        return NotFound(f"{message}, nor of any other {operator}", field="workload_key")
    listed = "; ".join(f"{row.workload_key} ({_text(row.parameters)})" for row in near[:MAX_NEAREST])
    return NotFound(f"{message}; nearest known {operator}: {listed}", field="workload_key")


def _text(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items())
