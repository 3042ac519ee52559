"""The supervisor of a runner child, which owns the device and turns binaries into reports."""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from ..codegen.backend import CompiledKernel
from ..core.errors import InvalidParameter, WorkerLost
from ..core.target import DeviceInfo, Toolchain
from ..core.trial import Clocks, Evidence, Failed, Outcome, Reason, TrialStage
from .child import Child, ChildDied, ChildHung
from .child_environment import library_threads, visible
from .child_supervisor import ChildSupervisor, WorkerSpec
from .environment import load
from .frames import Frame
from .lease_guard import Allowed, always
from .losses import Abandoned, DeviceLost
from .oracle_builder import OracleBuilder, OracleFailed
from .reference_cache import ReferenceCache
from .reference_data import available_bytes
from .report import RunReport
from .sandbox import Sandbox
from .settings import HOST_KINDS
from .wire import (
    Json,
    binaries_to_frame,
    binary_to_frame,
    device_from_json,
    outcome_from_json,
    profile_to_json,
    report_from_json,
    rules_to_json,
)

_SLOWER = 500.0
_RUNNER_SHARE = 0.9
_AROUND_LAUNCHES_SECONDS = 6.0


class RunnerSupervisor(ChildSupervisor):
    """See ``executor.Runner``. It remembers which workload its child is set up for; the reference_data outlive the
    child."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.allowed: Allowed = always
        self.probe: Callable[[], bool] = lambda: True
        self._references = ReferenceCache(spec)
        super().__init__(
            runner_setup(spec),
            spec.settings,
            environment=runner_environment(spec),
            descriptors=self._references.descriptors,
            sandbox=runner_sandbox(spec),
            memory_bytes=runner_memory_bytes(spec),
        )
        self._spec = spec
        self._oracles = OracleBuilder(spec)
        self._workload: Json | None = None
        self._ready: Child | None = None

    def interrupt(self) -> None:
        super().interrupt()
        self._references.abandon()
        self._oracles.interrupt()

    def resume(self) -> None:
        super().resume()
        self._oracles.resume()

    def close(self) -> None:
        super().close()
        self._references.close()
        self._oracles.close()

    def prefetch(self, workload: Json) -> None:
        """Begin to compute the inputs and the reference of a workload; returns at once.

        Nothing is done ahead where the device is the processor itself, since that would disturb what is timed there.
        """
        if self._spec.target.kind not in HOST_KINDS:
            self._references.prepare(workload)

    def run(self, workload: Json, binary: CompiledKernel, incumbent_seconds: float | None) -> RunReport:
        """Check and time ``binary``; ``workload`` is JSON.

        Raises WorkerLost when the call is interrupted or the workload cannot be prepared, and OutOfMemory when its data
        do not fit. No candidate of the workload can be measured here after OutOfMemory.
        """
        frame = binary_to_frame(binary, {"ask": "run", "incumbent_seconds": incumbent_seconds})
        started = time.perf_counter()
        deadlines = launch_deadlines(self._deadlines, incumbent_seconds)
        answer: Frame | Failed
        try:
            answer = self._candidate(frame, TrialStage.LOAD, lambda: self._prepare(workload), deadlines)
        except OracleFailed as error:
            answer = Failed(TrialStage.CHECK, Reason.LAUNCH_ERROR, error.message)
        wall = time.perf_counter() - started
        if isinstance(answer, Failed):
            clocks = Clocks(time=wall) if answer.stage is TrialStage.TIME else Clocks(check=wall)
            key = hashlib.sha256(binary.code).hexdigest()
            evidence = Evidence(self._spec.seed, binary_key=key, binary_bytes=len(binary.code), environment=load())
            return RunReport(answer, clocks, evidence)
        report = report_from_json(answer.header)
        if report.tainted:
            self._replace()
        overhead = max(0.0, wall - report.clocks.check - report.clocks.time)
        return replace(report, clocks=replace(report.clocks, overhead=overhead))

    def remeasure(self, workload: Json, binaries: Sequence[CompiledKernel]) -> list[tuple[float, ...]]:
        """Return the samples of each binary in seconds, all timed interleaved.

        A binary that fails has no samples, and the others are timed again without it. Raises as ``run`` does.
        """
        samples: list[tuple[float, ...]] = [()] * len(binaries)
        left = list(range(len(binaries)))
        while left:
            self._prepare(workload)
            frame = binaries_to_frame([binaries[n] for n in left], {"ask": "remeasure"})
            try:
                answer = self._ask(frame, TrialStage.LOAD.value).header
            except (ChildDied, ChildHung) as error:
                failed, lost = error.item, True
            else:
                failed, lost = cast(int | None, answer["failed"]), bool(answer["tainted"])
                if failed is None:
                    for n, found in zip(left, cast(list[list[float]], answer["samples"]), strict=True):
                        samples[n] = tuple(found)
                    break
            if lost:
                self._replace()
            if failed is None:
                break
            del left[failed]
        return samples

    def describe(self) -> tuple[DeviceInfo, Toolchain]:
        """Return the device of this target, and the toolchain that builds for it."""
        answer = self._question({"ask": "describe"}, "ask")
        components = cast(dict[str, str], answer["toolchain"])
        return device_from_json(answer["device"]), Toolchain(components)

    def baseline(self, operator: str, parameters: Json) -> Outcome | None:
        """Return the operator's NumPy form, timed on the data that candidates get; None when it crashes or takes too
        long.

        Raises InvalidParameter for an unknown operator, and for parameters that it cannot take.
        """
        question: Json = {"ask": "baseline", "operator": operator, "parameters": parameters}
        try:
            answer = self._ask(Frame(question), "baseline").header
        except (ChildDied, ChildHung):
            return None
        if "error" in answer:
            raise InvalidParameter(str(answer["error"]), field=str(answer["field"]))
        return outcome_from_json(answer["outcome"])

    def peaks(self) -> dict[str, float]:
        """Return the device's measured ceilings. Raises WorkerLost."""
        return cast(dict[str, float], self._question({"ask": "peaks"}, "peaks")["peaks"])

    def _ask(self, frame: Frame, first_stage: str, deadlines: Mapping[str, float] | None = None) -> Frame:
        """Return the answer to a request that may still be made. The child looks at the clock once it has the device,
        and it is asked again where the lease was renewed meanwhile. Raises LeaseLost where it was not."""
        while True:
            until = self.allowed()
            header = frame.header if math.isinf(until) else {**frame.header, "until": until}
            answer = super()._ask(Frame(header, frame.blobs), first_stage, deadlines)
            if "too_late" not in answer.header:
                return answer

    def _greeted(self) -> Child:
        """As for any child. Raises DeviceLost where it does not start, because its device does not open."""
        try:
            return super()._greeted()
        except WorkerLost as lost:
            if self._interrupted:
                raise
            raise DeviceLost(lost.message) from lost

    def _prepare(self, workload: Json) -> None:
        """Set up the child for ``workload``, unless it is set up for it."""
        if self._child is not None and self._ready is self._child and self._workload == workload:
            return
        self._references.prepare(workload)
        if self._interrupted:  # looked at after there is a computation that ``interrupt`` could have stopped
            raise Abandoned()
        layout = self._references.layout(workload)
        question: Json = {"ask": "prepare", "workload": workload, "layout": layout}
        oracle = self._oracles.of(workload)
        if oracle is None:
            self._question(question, "prepare")
        else:
            given = binary_to_frame(oracle.binary, {**question, "configuration": oracle.configuration})
            failed = self._question(given.header, "prepare", given.blobs).get("oracle_failed")
            if failed is not None:
                self._replace()
                raise self._oracles.refused(str(failed))
        self._workload, self._ready = workload, self._child

    def _replace(self) -> None:
        """Replace the child, because its device context or its memory may be damaged."""
        self._drop()
        self.start()


class ProbeSupervisor(ChildSupervisor):
    """A runner child without workloads, which opens the device and times the anchors."""

    def __init__(self, spec: WorkerSpec) -> None:
        environment, sandbox = runner_environment(spec), runner_sandbox(spec)
        super().__init__(runner_setup(spec), spec.settings, environment=environment, sandbox=sandbox)

    def anchors(self) -> dict[str, float]:
        """``anchor_seconds``, and ``power_anchor_seconds`` where the device has that anchor. Raises WorkerLost."""
        return {n: s for n, s in self._question({"ask": "probe"}, "probe").items() if isinstance(s, float)}


def runner_setup(spec: WorkerSpec) -> Json:
    """Return what a runner child is told first."""
    return {
        "role": "run",
        "target": spec.target.to_json(),
        "uuid": spec.unit.uuid,
        "fence": spec.fence,
        "lock_folder": spec.settings.lock_folder,
        "profile": profile_to_json(spec.profile),
        "timing": rules_to_json(spec.settings.timing),
        "final": rules_to_json(spec.settings.final),
        "seed": spec.seed,
    }


def runner_environment(spec: WorkerSpec) -> dict[str, str]:
    """Return what a runner child gets beyond other children: threads where it is the device, and the sight of its
    device."""
    threads = spec.target.threads if spec.target.kind in HOST_KINDS else 1
    return {**library_threads(threads), **visible(spec.target.kind, spec.unit.uuid)}


def runner_sandbox(spec: WorkerSpec) -> Sandbox | None:
    """Return how a runner child is restricted: no sockets, and no other processes. That of a GPU is not: the driver
    starts a program with more rights where device nodes are missing, which restricted processes cannot."""
    return Sandbox(files=True, low_priority=False) if spec.target.kind in HOST_KINDS else None


def runner_memory_bytes(spec: WorkerSpec) -> int:
    """Return how much memory a runner child may have, so that a kernel that takes more costs its child and no other
    process. Its address space is not limited, because the driver of a GPU reserves more than there is."""
    return spec.settings.runner_memory_bytes or int(_RUNNER_SHARE * (available_bytes() or 0))


def launch_deadlines(deadlines: Mapping[str, float], incumbent_seconds: float | None) -> dict[str, float]:
    """Deadlines by stage in seconds, tighter once it is known how long a good kernel takes.

    A kernel that is hundreds of times slower is not worth waiting for. Work around the launches, such as filling and
    comparing buffers, still gets its seconds.
    """
    if incumbent_seconds is None:
        return dict(deadlines)
    limit = _AROUND_LAUNCHES_SECONDS + _SLOWER * incumbent_seconds
    return {**deadlines, **{stage: min(deadlines[stage], limit) for stage in ("check", "time")}}
