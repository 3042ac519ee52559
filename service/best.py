"""Looking the best schedule up.

Identity parts that are not asked for are those of this machine: its device, its toolchain, and a warm cache. When
nothing matches all of them, they are relaxed one after the other, in an order that costs least first: the measuring
profile (the same kernel, timed otherwise), then the toolchain (the same device, built otherwise), then the device.
``match`` names the parts in which the record found differs from what was asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import NotFound
from ..core.record import MeasuredOn
from ..core.target import Profile
from ..db.store import Store
from .convert import best_view, distance
from .views import BestView

NEAREST = 3
"""How many near workloads a miss names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked up; None: as on this machine."""

    workload_key: str
    device_key: str | None = None
    toolchain_key: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Here:
    """Identity parts of this machine; None where it has no device."""

    device_key: str | None = None
    toolchain_key: str | None = None
    profile: str = str(Profile())

    @classmethod
    def of(cls, at_hand: MeasuredOn | None) -> "Here":
        """The identity of what jobs are measured on here."""
        if at_hand is None:
            return cls()
        return cls(at_hand.device.key, at_hand.toolchain.key, str(at_hand.profile))


def find(store: Store, wanted: Wanted, here: Here) -> BestView:
    """The fastest record that matches best. Raises NotFound."""
    device = wanted.device_key or here.device_key
    toolchain = wanted.toolchain_key or here.toolchain_key
    profile = wanted.profile or here.profile
    row = store.best(wanted.workload_key, device_key=device, toolchain_key=toolchain, profile=profile)
    if row is None:
        raise NotFound(f"no timed record of workload {wanted.workload_key}", field="workload_key")
    identity = row.record.identity
    parts = (
        ("profile", profile, identity.profile),
        ("toolchain", toolchain, identity.toolchain_key),
        ("device", device, identity.device_key),
    )
    differing = tuple(name for name, asked, found in parts if asked is not None and asked != found)
    return best_view(row, differing or ("exact",))


def miss(store: Store, wanted: Wanted, operator: str | None, parameters: Mapping[str, object] | None) -> NotFound:
    """The error for a workload without a timed record: it names the nearest known of the same operator."""
    if operator is None:
        origin = store.origin(wanted.workload_key)
        if origin is not None:
            operator, parameters = origin
    message = f"no timed record of workload {wanted.workload_key}"
    if operator is None:
        return NotFound(message, field="workload_key")
    near = sorted(store.near(operator, limit=200), key=lambda row: distance(parameters or {}, row.parameters))
    if not near:
        return NotFound(f"{message}, nor of any other {operator}", field="workload_key")
    listed = "; ".join(f"{row.workload_key} ({_shown(row.parameters)})" for row in near[:NEAREST])
    return NotFound(f"{message}; nearest known {operator}: {listed}", field="workload_key")


def _shown(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items())
