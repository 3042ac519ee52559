"""Shows every layer of the lowering pipeline for one schedule, and how near it comes to the roofline."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.errors import NotFound, UnsupportedTarget
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.target import Target
from ..core.trial import Outcome, Timed
from ..db.rows import TrialRow
from ..db.store import RecordStore
from ..te.cost import flops, minimum_bytes
from ..te.key import workload_key
from ..te.text import workload_text
from ..te.workload import Workload
from . import wiring
from .artefacts import Artefacts
from .compilations import Compilations
from .roofline import peak_rates, roofline
from .views import BestView, Explanation, ExportView, Section

MEASURED_FILES = {"cubin": "kernel.cubin", "elf": "measured.o"}
"""Where in an export the binary lies that was measured, by its format."""
MEASURED_DESCRIPTION = "measured.json"


@dataclass(frozen=True, slots=True)
class CompilationInput:
    """This is compiled to be shown: a schedule of a workload, for a device and toolchain. If the schedule has a record,
    ``outcome`` says how its trial ended, and ``binary_key`` is the hash of the binary that was measured."""

    workload: Workload
    schedule: Schedule
    compiled_for: MeasuredOn
    outcome: Outcome | None = None
    record_id: int | None = None
    binary_key: str | None = None


def compilation_input(
    workload: Workload,
    compiled_for: MeasuredOn | None,
    *,
    schedule: Schedule | None = None,
    record: TrialRow | None = None,
    best: BestView | None = None,
    measured: bool = False,
    first: Callable[[Workload, Target], Schedule],
) -> CompilationInput:
    """Choose the schedule: that of ``record``, or ``schedule``, or ``best``, or what ``first`` returns;
    with ``measured`` this last one is no choice, and raises NotFound.

    Code is made for ``compiled_for``, also when the record was measured on another device. Raises UnsupportedTarget.
    """
    if compiled_for is None:
        raise UnsupportedTarget("this machine has no device to generate code for", field="target")
    if record is not None:
        trial = record.record.trial
        known = (record.record.id, trial.evidence.binary_key)
        return CompilationInput(workload, trial.schedule, compiled_for, trial.outcome, *known)
    if schedule is not None:
        return CompilationInput(workload, schedule, compiled_for)
    if best is not None and wiring.fits(workload, compiled_for.device.target, best.schedule):
        known = (best.record_id, best.evidence.binary_key)
        return CompilationInput(workload, best.schedule, compiled_for, Timed((best.seconds,)), *known)
    if measured:
        raise NotFound("no measured schedule of this workload is known for this device", field="schedule")
    return CompilationInput(workload, first(workload, compiled_for.device.target), compiled_for)


def export(
    compilations: Compilations, artefacts: Artefacts, given: CompilationInput, name: str, library: bool
) -> ExportView:
    """Return the schedule as files. The binary that was measured is among them where it is kept. A cubin takes the
    place of the one that was built now. The object of a processor stands beside the new one, which has functions for
    other programs too. Raises IllegalSchedule, CompileError, UnsupportedTarget, InvalidParameter."""
    files = compilations.files(given.workload, given.compiled_for.device.target, given.schedule, name, library)
    made = wiring.binary_sha256(files)
    same = None if given.binary_key is None else made == given.binary_key
    kept = None if given.binary_key is None else artefacts.store.find(given.binary_key)
    if kept is not None:
        place = MEASURED_FILES[kept.format]
        described = json.dumps({"binary_sha256": kept.sha256, **kept.description}, indent=2) + "\n"
        files = {**files, place: kept.code, MEASURED_DESCRIPTION: described.encode()}
    key = workload_key(given.workload)
    return ExportView(key, given.schedule, files, given.record_id, made, same, kept is not None)


def explain(store: RecordStore, compilations: Compilations, given: CompilationInput) -> Explanation:
    """Return every layer of the schedule. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    workload, schedule, compiled_for, outcome = given.workload, given.schedule, given.compiled_for, given.outcome
    device, cache = compiled_for.device, compiled_for.profile.cache
    seconds = outcome.seconds if isinstance(outcome, Timed) else None
    compiled = compilations.layers(workload, device.target, schedule)
    measured = store.measured(device.key)
    limit, rates = roofline(workload, device, measured, cache), peak_rates(workload, device.target, measured)
    operations, traffic = flops(workload), minimum_bytes(workload)
    return Explanation(
        workload_key=workload_key(workload),
        schedule=schedule,
        sections=(
            Section("expression", "text", workload_text(workload)),
            Section("knobs", "text", _knobs(schedule, compiled.meanings)),
            Section("schedule", "json", json.dumps(schedule.to_json(), indent=2)),
            *compiled.sections,
        ),
        instructions=compiled.instructions,
        target=str(device.target),
        functions=compiled.functions,
        flops=operations,
        minimum_bytes=traffic,
        accessed_bytes=compiled.accessed_bytes,
        flops_per_byte=operations / traffic if traffic else 0.0,
        roofline_seconds=None if limit is None else limit.seconds,
        roofline_by=None if limit is None else limit.by,
        seconds=seconds,
        fraction_of_roofline=None if limit is None or seconds is None else limit.seconds / seconds,
        warnings=compiled.warnings,
        matrix_layers=compiled.matrix_layers,
        peak_flops_per_second=rates.flops_per_second,
        peak_bytes_per_second=rates.bytes_per_second,
    )


def _knobs(schedule: Schedule, meanings: Mapping[str, str]) -> str:
    width = max((len(f"{name} = {value}") for name, value in schedule.knobs), default=0)
    return "\n".join(
        f"{f'{name} = {value}':<{width}}  {meanings.get(name, '')}".rstrip() for name, value in schedule.knobs
    )
