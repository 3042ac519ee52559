"""Submits jobs that measure again what was the best before a driver, a compiler or a sketch changed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..core.errors import InvalidParameter, NotFound, UnsupportedTarget
from ..core.retuning import Retuning
from ..core.target import DeviceInfo
from ..db.store import RecordStore
from ..te.json import workload_from_json
from . import targets, wiring
from .pagination import valid_key
from .submit import MAX_TASKS
from .views import JobSpec, JobView, TaskSpec


class Retunes:
    """``submit`` is that of the service."""

    def __init__(self, store: RecordStore, submit: Callable[..., tuple[JobView, bool]]) -> None:
        self._store = store
        self._submit = submit

    def start(
        self, spec: JobSpec, workload_keys: Sequence[str] = (), *, idempotency_key: str | None = None
    ) -> tuple[JobView, bool]:
        """Submit the job that retunes these workloads; without any, those whose best records on the devices of
        ``spec.target`` are all of another toolchain or of sketches in other versions, the newest 256 of them. Return
        (job, whether it is new). ``spec`` has no tasks, and ``retuning`` is what is asked for.

        Raises what ``Service.submit`` raises, and NotFound where there is nothing to retune."""
        asked = spec.retuning or Retuning()
        if asked.toolchain_before is not None:
            valid_key(asked.toolchain_before, "toolchain_before")
        if len(workload_keys) > MAX_TASKS:
            raise InvalidParameter(
                f"{len(workload_keys)} workloads; allowed: at most {MAX_TASKS}", field="workload_keys"
            )
        keys = [valid_key(key, "workload_keys") for key in dict.fromkeys(workload_keys)]
        keys = keys or self._moved(spec, asked.toolchain_before)
        if not keys:
            raise NotFound(
                f"there is nothing to retune on {spec.target}: no workload has best records of earlier toolchains or "
                "sketches alone",
                field="target",
            )
        spec = replace(spec, tasks=tuple(map(self._task, keys)), fresh=True, retuning=asked)
        return self._submit(spec, idempotency_key=idempotency_key)

    def _moved(self, spec: JobSpec, before: str | None) -> list[str]:
        """Return the keys of the workloads that have moved on any device of the target."""
        known = self._store.devices()
        targets.kind_of(spec.target, lambda: (*known, *wiring.present_devices()), one_host=self._store.embedded)
        found: dict[str, None] = {}
        for info in targets.devices_of(spec.target, known):
            kind = info.target.kind
            profile = targets.profile_of(kind, spec.cache or targets.default_cache(kind))
            moved = self._store.moved(
                info.key, str(profile), _toolchain_key(info), wiring.sketch_versions(), before, limit=MAX_TASKS
            )
            found.update(dict.fromkeys(moved))
        return list(found)[:MAX_TASKS]

    def _task(self, key: str) -> TaskSpec:
        data = self._store.workload(key)
        if data is None:
            raise NotFound(f"no workload {key[:80]!r} is known", field="workload_keys")
        operator, parameters = self._store.origin(key) or (None, None)
        return TaskSpec(workload_from_json(data), operator, parameters)


def _toolchain_key(info: DeviceInfo) -> str | None:
    """Return the key of the toolchain of this program for a device; None where it cannot compile for it here."""
    try:
        return targets.usual(info, None).toolchain.key
    except UnsupportedTarget:
        return None
