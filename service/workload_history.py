"""Shows what was found for a workload over devices, toolchains and time, and where it became slower."""

from collections.abc import Mapping, Sequence

from ..core.errors import NotFound
from ..core.trial import Timed
from ..db.rows import ResultRow, WorkloadSummary
from ..db.store import RecordStore
from ..te.cost import flops, minimum_bytes
from ..te.json import workload_from_json
from ..te.text import workload_text
from .analysis_views import ResultView, WorkloadHistory, WorkloadView
from .page_token import page_size, read_token, write_token
from .pagination import valid_key
from .rank_test import mann_whitney
from .views import Page

MOST_RESULTS = 500
"""Only so many results are shown, the newest."""
LEAST_SLOWDOWN = 1.02
"""A result that is slower by less is no regression: machines are not that steady from day to day."""
MOST_P_VALUE = 0.01


def page_of_workloads(store: RecordStore, operator: str | None, size: int, token: str) -> Page[WorkloadView]:
    """Return workloads that were submitted, those of the newest jobs first. Raises InvalidParameter."""
    size = page_size(size)
    name = ("workloads", operator or "")
    cursor = read_token(token, name, (int, int))
    before = None if cursor is None else (int(cursor[0]), int(cursor[1]))
    rows, following = store.analysis.workloads(before=before, operator=operator, limit=size)
    return Page(tuple(map(_workload_view, rows)), "" if following is None else write_token(name, following))


def _workload_view(row: WorkloadSummary) -> WorkloadView:
    return WorkloadView(
        workload_key=row.workload_key,
        operator=row.operator,
        parameters=row.parameters,
        flops=row.flops,
        minimum_bytes=row.minimum_bytes,
        tasks=row.tasks,
        trials=row.trials,
        devices=row.devices,
        best_seconds=row.best_seconds,
        newest_at=row.newest_at,
    )


def workload_history(store: RecordStore, workload_key: str) -> WorkloadHistory:
    """Return the results of a workload in the order of time, and the best for each device. Raises NotFound."""
    data = store.workload(valid_key(workload_key, "workload_key"))
    if data is None:
        raise NotFound(f"no workload {workload_key[:80]!r} is known", field="workload_key")
    workload = workload_from_json(data)
    operator, parameters = store.origin(workload_key) or (None, None)
    results = judged(store.analysis.results(workload_key, limit=MOST_RESULTS))
    places = dict[tuple[str, str], ResultView]()
    for result in results:
        place = (result.device_key, result.profile)
        if place not in places or result.seconds < places[place].seconds:
            places[place] = result
    return WorkloadHistory(
        workload_key=workload_key,
        operator=operator,
        parameters=parameters,
        expression=workload_text(workload),
        flops=flops(workload),
        minimum_bytes=minimum_bytes(workload),
        results=results,
        best=tuple(sorted(places.values(), key=lambda result: result.seconds)),
        regressions=sum(result.is_regression for result in results),
    )


def judged(rows: Sequence[ResultRow]) -> tuple[ResultView, ...]:
    """Compare each result with the fastest one before it on the same device and profile."""
    fastest = dict[tuple[str, str], ResultRow]()
    found = []
    for row in rows:
        identity = row.best.record.identity
        place = (identity.device_key, identity.profile)
        found.append(_result(row, fastest.get(place)))
        if place not in fastest or _timed(row).seconds < _timed(fastest[place]).seconds:
            fastest[place] = row
    return tuple(found)


def _timed(row: ResultRow) -> Timed:
    outcome = row.best.record.trial.outcome
    assert isinstance(outcome, Timed)
    return outcome


def _samples(row: ResultRow) -> tuple[float, ...]:
    return _timed(row).final_samples or _timed(row).samples


def _result(row: ResultRow, before: ResultRow | None) -> ResultView:
    record, seconds = row.best.record, _timed(row).seconds
    ratio = p_value = None
    is_regression, why = False, ""
    if before is not None:
        ratio = seconds / _timed(before).seconds
        test = mann_whitney(_samples(before), _samples(row))
        p_value = None if test is None else test.p_value
        is_regression = ratio > LEAST_SLOWDOWN and p_value is not None and p_value < MOST_P_VALUE
        why = _why(before, row) if is_regression else ""
    return ResultView(
        record_id=record.id,
        job_id=record.job_id,
        task=record.task,
        created_at=row.job_created_at,
        device_key=record.identity.device_key,
        device_name=row.best.device_name,
        toolchain_key=record.identity.toolchain_key,
        toolchain=components_text(row.components),
        profile=record.identity.profile,
        sketch=record.identity.sketch,
        strategy=row.strategy,
        trials=row.trials,
        seconds=seconds,
        spread=_timed(row).spread,
        gflops=row.best.flops / seconds / 1e9 if row.best.flops else None,
        roofline_seconds=row.roofline_seconds,
        against_record_id=None if before is None else before.best.record.id,
        ratio=ratio,
        p_value=p_value,
        is_regression=is_regression,
        why=why,
    )


def components_text(components: Mapping[str, str]) -> str:
    """Write a toolchain in a line: ``llvm 20, tilewright 0.1.0``."""
    return ", ".join(f"{name} {version}" for name, version in sorted(components.items()))


def _why(before: ResultRow, row: ResultRow) -> str:
    """Say in which respects a slower result differs from the faster one before it."""
    names = sorted({*before.components, *row.components})
    changed = [
        f"{name} {before.components.get(name, 'none')} → {row.components.get(name, 'none')}"
        for name in names
        if before.components.get(name) != row.components.get(name)
    ]
    same = before.best.record.trial.schedule.key == row.best.record.trial.schedule.key
    found = ["the same schedule" if same else "another schedule"]
    found.append(f"another toolchain ({', '.join(changed)})" if changed else "the same toolchain")
    if row.trials < before.trials:
        found.append(f"its search had {row.trials} trials instead of {before.trials}")
    return ", ".join(found)
