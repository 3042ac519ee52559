"""Which device a schedule is shown or exported for: it need not be here."""

from dataclasses import dataclass

from ..core.errors import NotFound, UnsupportedTarget
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.target import DeviceInfo, Profile, Target
from ..core.trial import Outcome, Timed
from ..db.rows import TrialRow
from ..db.store import Store
from ..te.key import workload_key
from ..te.workload import Workload
from . import best, wiring

GENERIC: dict[str, Target] = {"cuda": Target("cuda", "sm_90a", (), 132, 16)}
"""Target kind -> what code is made for where nothing is known of a device of that kind (cuda: a Hopper GPU)."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is shown: a schedule for a device, and how its trial ended where there was one. ``cache``: the profile's."""

    device: DeviceInfo
    schedule: Schedule
    outcome: Outcome | None = None
    cache: str = Profile().cache


def subject(
    store: Store,
    workload: Workload,
    at_hand: MeasuredOn | None,
    *,
    schedule: Schedule | None = None,
    record: TrialRow | None = None,
    target: str | None = None,
) -> Subject:
    """``record``'s schedule and time, or ``schedule``, or the best known, or the first of the space.

    ``target``: ``KIND`` or ``KIND:ARCHITECTURE``. Without it, code is for this machine, and for a record of a kind of
    device that this machine does not have, for the device of the record. Raises UnsupportedTarget.
    """
    device = _device(store, at_hand, record, target)
    cache = at_hand.profile.cache if at_hand is not None else Profile().cache
    if record is not None:
        trial = record.record.trial
        return Subject(device, trial.schedule, trial.outcome, record.record.identity.profile.partition("-")[0])
    if schedule is not None:
        return Subject(device, schedule, None, cache)
    here = best.Here.of(at_hand) if at_hand is not None and at_hand.device.key == device.key else best.Here(device.key)
    try:
        found = best.find(store, best.Wanted(workload_key(workload)), here)
        if wiring.fits(workload, device.target, found.schedule):
            return Subject(device, found.schedule, Timed(found.samples), cache)
    except NotFound:
        pass
    return Subject(device, wiring.first_schedule(workload, device.target), None, cache)


def _device(store: Store, at_hand: MeasuredOn | None, record: TrialRow | None, target: str | None) -> DeviceInfo:
    present = ([] if at_hand is None else [at_hand.device]) + list(wiring.present_devices())
    known = list(store.devices())
    if target is not None:
        return _of_target(target, [*present, *known])
    if record is not None:
        own = next((d for d in known if d.key == record.record.identity.device_key), None)
        if own is not None:
            return next((d for d in present if d.target.kind == own.target.kind), own)
    if not present:
        raise UnsupportedTarget("this machine has no device to generate code for; name a target", field="target")
    return present[0]


def _of_target(text: str, devices: list[DeviceInfo]) -> DeviceInfo:
    """The first device of the target, else one of which nothing is known."""
    kind, _, arch = text.partition(":")
    for device in devices:
        if device.target.kind == kind and arch in ("", device.target.arch):
            return device
    generic = GENERIC.get(kind)
    if generic is None:
        known = sorted({*GENERIC, *(d.target.kind for d in devices)})
        raise UnsupportedTarget(
            f"{text[:80]!r} is no target that code can be made for; known: {', '.join(known)}", field="target"
        )
    made = Target(kind, arch or generic.arch, generic.features, generic.threads, generic.vector_bytes)
    return DeviceInfo(f"any {made}", made)
