"""Looking the best schedule up.

Identity parts that are not asked for are those of this machine: its device, its toolchain, and a warm cache. When
nothing matches all of them, they are relaxed one after the other, in an order that costs least first: the measuring
profile (the same kernel, timed otherwise), then the toolchain (the same device, built otherwise), then the device.
``match`` names the parts in which the record found differs from what was asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.errors import NotFound
from ..core.record import MeasuredOn
from ..core.target import Profile
from ..db.rows import BestRow
from ..db.store import Store
from .convert import best_view, distance
from .views import BestView

RELAXED = ("profile", "toolchain", "device")
"""The order in which identity parts are relaxed."""
NEAREST = 3
"""How many near workloads a miss names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked up; None: as on this machine."""

    workload_key: str
    device_key: str | None = None
    toolchain_key: str | None = None
    profile: str | None = None


def find(store: Store, wanted: Wanted, here: Callable[[], MeasuredOn | None]) -> BestView:
    """The fastest record that matches best. Raises NotFound."""
    at_hand = here() if wanted.device_key is None or wanted.toolchain_key is None else None
    device, toolchain = wanted.device_key, wanted.toolchain_key
    if at_hand is not None:
        device, toolchain = device or at_hand.device.key, toolchain or at_hand.toolchain.key
    parts = {"device_key": device, "toolchain_key": toolchain, "profile": wanted.profile or str(Profile())}
    for names in ((), RELAXED[:1], RELAXED[:2], RELAXED):
        kept = {name: value for name, value in parts.items() if name.removesuffix("_key") not in names}
        row = store.best(wanted.workload_key, **kept)
        if row is not None:
            return best_view(row, _match(row, parts))
    raise NotFound(f"no timed record of workload {wanted.workload_key[:80]}", field="workload_key")


def _match(row: BestRow, parts: Mapping[str, str | None]) -> tuple[str, ...]:
    identity = row.record.identity
    differing = tuple(
        name.removesuffix("_key")
        for name, value in parts.items()
        if value is not None and getattr(identity, name) != value
    )
    return differing or ("exact",)


def miss(store: Store, wanted: Wanted, operator: str | None, parameters: Mapping[str, object] | None) -> NotFound:
    """The error for a workload without a timed record: it names the nearest known of the same operator."""
    if operator is None:
        origin = store.origin(wanted.workload_key)
        if origin is not None:
            operator, parameters = origin
    message = f"no timed record of workload {wanted.workload_key[:80]}"
    if operator is None:
        return NotFound(message, field="workload_key")
    near = sorted(store.near(operator, limit=200), key=lambda row: distance(parameters or {}, row.parameters))
    if not near:
        return NotFound(f"{message}, nor of any other {operator}", field="workload_key")
    listed = "; ".join(f"{row.workload_key} ({_shown(row.parameters)})" for row in near[:NEAREST])
    return NotFound(f"{message}; nearest known {operator}: {listed}", field="workload_key")


def _shown(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items())
