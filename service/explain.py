"""Every layer of the road of one schedule, and where it lies under the roofline."""

import json
from dataclasses import dataclass

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
from .views import Explanation, ExportView, Section


@dataclass(frozen=True, slots=True)
class Subject:
    """What is shown: a schedule of a workload, where code for it is made, and how its trial ended, if it had one."""

    workload: Workload
    schedule: Schedule
    at_hand: MeasuredOn
    outcome: Outcome | None = None


def subject(
    store: Store,
    workload: Workload,
    at_hand: MeasuredOn | None,
    *,
    schedule: Schedule | None = None,
    record: TrialRow | None = None,
) -> Subject:
    """``record``'s schedule and time, or ``schedule``, or the best known, or the first of the space.

    Code is generated for ``at_hand``, also when the record is another's. Raises UnsupportedTarget.
    """
    if at_hand is None:
        raise UnsupportedTarget("this machine has no device to generate code for", field="target")
    if record is not None:
        return Subject(workload, record.record.trial.schedule, at_hand, record.record.trial.outcome)
    if schedule is not None:
        return Subject(workload, schedule, at_hand)
    try:
        found = best.find(store, best.Wanted(workload_key(workload)), best.Here.of(at_hand))
        if wiring.fits(workload, at_hand.device.target, found.schedule):
            return Subject(workload, found.schedule, at_hand, Timed((found.seconds,)))
    except NotFound:
        pass
    return Subject(workload, wiring.first_schedule(workload, at_hand.device.target), at_hand)


def export(shown: Subject, name: str, library: bool) -> ExportView:
    """``shown`` as files. Raises IllegalSchedule, CompileError, UnsupportedTarget, InvalidParameter."""
    files = wiring.files_of(shown.workload, shown.at_hand.device.target, shown.schedule, name, library)
    return ExportView(workload_key(shown.workload), shown.schedule, files)


def explain(store: Store, shown: Subject) -> Explanation:
    """All that can be seen of ``shown``. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    workload, schedule, at_hand, outcome = shown.workload, shown.schedule, shown.at_hand, shown.outcome
    device, cache = at_hand.device, at_hand.profile.cache
    seconds = outcome.seconds if isinstance(outcome, Timed) else None
    road = wiring.artifacts(workload, device.target, schedule)
    limit = roofline(workload, device, store.measured(device.key), cache)
    operations, traffic = flops(workload), minimum_bytes(workload)
    return Explanation(
        workload_key=workload_key(workload),
        schedule=schedule,
        sections=(
            Section("expression", "text", workload_text(workload)),
            Section("knobs", "text", _knobs(workload, at_hand, schedule)),
            Section("schedule", "json", json.dumps(schedule.to_json(), indent=2)),
            *road.sections,
        ),
        instructions=road.instructions,
        target=str(device.target),
        functions=road.functions,
        flops=operations,
        minimum_bytes=traffic,
        accessed_bytes=road.accessed_bytes,
        flops_per_byte=operations / traffic if traffic else 0.0,
        roofline_seconds=None if limit is None else limit.seconds,
        roofline_by=None if limit is None else limit.by,
        seconds=seconds,
        fraction_of_roofline=None if limit is None or seconds is None else limit.seconds / seconds,
        warnings=road.warnings,
    )


def _knobs(workload: Workload, at_hand: MeasuredOn, schedule: Schedule) -> str:
    meanings = wiring.knob_meanings(workload, at_hand.device.target, schedule)
    width = max((len(f"{name} = {value}") for name, value in schedule.knobs), default=0)
    return "\n".join(
        f"{f'{name} = {value}':<{width}}  {meanings.get(name, '')}".rstrip() for name, value in schedule.knobs
    )
