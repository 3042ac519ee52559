"""Every layer of the road of one schedule, and where it lies under the roofline."""

import json

from ..core.errors import NotFound, UnsupportedTarget
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.trial import Outcome, Timed
from ..db.rows import TrialRow
from ..db.store import Store
from ..te.cost import flops, minimum_bytes
from ..te.key import workload_key
from ..te.text import workload_text
from ..te.workload import Workload
from . import best, wiring
from .roofline import roofline
from .views import Explanation, Section


def explain(
    store: Store,
    workload: Workload,
    at_hand: MeasuredOn | None,
    *,
    schedule: Schedule | None = None,
    record: TrialRow | None = None,
) -> Explanation:
    """``record``'s schedule and time, or ``schedule``, or the best known, or the first of the space.

    Code is generated for ``at_hand``, also when the record is another's. Raises IllegalSchedule, CompileError,
    UnsupportedTarget.
    """
    if at_hand is None:
        raise UnsupportedTarget("this machine has no device to generate code for", field="target")
    device, cache = at_hand.device, at_hand.profile.cache
    key = workload_key(workload)
    outcome: Outcome | None = None
    if record is not None:
        schedule, outcome = record.record.trial.schedule, record.record.trial.outcome
    elif schedule is None:
        try:
            found = best.find(store, best.Wanted(key), best.Here.of(at_hand))
            if wiring.fits(workload, device.target, found.schedule):
                schedule, outcome = found.schedule, Timed((found.seconds,))
        except NotFound:
            pass
    if schedule is None:
        schedule = wiring.first_schedule(workload, device.target)
    seconds = outcome.seconds if isinstance(outcome, Timed) else None
    road = wiring.anatomy(workload, device.target, schedule)
    limit = roofline(workload, device, store.measured(device.key), cache)
    operations, traffic = flops(workload), minimum_bytes(workload)
    return Explanation(
        workload_key=key,
        schedule=schedule,
        sections=(
            Section("expression", "text", workload_text(workload)),
            Section("knobs", "text", _knobs(workload, at_hand, schedule)),
            Section("schedule", "json", json.dumps(schedule.to_json(), indent=2)),
            *road.sections,
        ),
        instructions=road.instructions,
        flops=operations,
        minimum_bytes=traffic,
        flops_per_byte=operations / traffic if traffic else 0.0,
        roofline_seconds=None if limit is None else limit.seconds,
        roofline_by=None if limit is None else limit.by,
        seconds=seconds,
        fraction_of_roofline=None if limit is None or seconds is None else limit.seconds / seconds,
    )


def _knobs(workload: Workload, at_hand: MeasuredOn, schedule: Schedule) -> str:
    meanings = wiring.knob_meanings(workload, at_hand.device.target, schedule)
    width = max((len(f"{name} = {value}") for name, value in schedule.knobs), default=0)
    return "\n".join(
        f"{f'{name} = {value}':<{width}}  {meanings.get(name, '')}".rstrip() for name, value in schedule.knobs
    )
