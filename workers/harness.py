"""One prepared workload on one device: candidates are loaded, checked and timed here, inside the runner child."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..codegen.backend import CompiledKernel, KernelParameter
from ..core.errors import CompileError, DeviceFault, Fault, InvalidParameter, TilewrightError
from ..core.trial import Clocks, Evidence, Failed, Outcome, Reason, Timed, TrialStage
from ..runtime.anchor import Anchor
from ..runtime.device import Device, LoadedKernel
from ..te.workload import Workload
from .buffers import GuardedBuffer
from .check import Expected, Truth, Verdict, check, check_again
from .environment import disturbance, load, stolen_seconds
from .oracle import Oracle, expected_of
from .reference_data import ReferenceData
from .report import RemeasureReport, RunReport
from .rotation import Rotation
from .settings import HOST_KINDS
from .timing import RemeasureRules, Timer, TimingRules, interleaved_samples, take_samples

_SLOW_LAUNCH_SECONDS = 0.25
_FAULTS = {
    Fault.ILLEGAL_ACCESS: Reason.ILLEGAL_ACCESS,
    Fault.BROKEN_OFF: Reason.ILLEGAL_ACCESS,
    Fault.TIMEOUT: Reason.TIMEOUT,
    Fault.REFUSED: Reason.LAUNCH_ERROR,
}


@dataclass(frozen=True, slots=True)
class HarnessRules:
    """``cold_bytes``: how much memory launches go through before they meet the same again (0: none, warm caches)."""

    timing: TimingRules
    final: RemeasureRules
    cold_bytes: int
    seed: int


class MeasurementHarness:
    """Buffers of inputs and outputs are allocated once and shared by all candidates, so that memory placement does
    not differ between them; workspace is the candidate's own."""

    def __init__(
        self,
        device: Device,
        workload: Workload,
        reference_data: ReferenceData,
        rules: HarnessRules,
        oracle: Oracle | None = None,
    ) -> None:
        """With an ``oracle``, the reference data have what outputs hold at first beside the inputs, and no reference.
        Raises DeviceFault, CompileError and InvalidParameter where the oracle cannot be launched."""
        self._device = device
        self._oracle = oracle
        self._rules = rules
        self._is_host = device.info.target.kind in HOST_KINDS
        held = {name: device.hold(array) for name, array in reference_data.inputs.items()}
        initial = {name: held.pop(name) for name in workload.outputs if name in held}
        expected = {
            n: Expected(device.hold(e.values), e.absolute, e.relative) for n, e in reference_data.expected.items()
        }
        if oracle is not None:
            expected = expected_of(oracle, device, held, initial)
        self._truth = Truth(device, held, expected, initial)
        inputs = [KernelParameter(b.name, "input", b.shape, b.dtype) for b in workload.inputs]
        outputs = [KernelParameter(b.name, "output", b.shape, b.dtype) for b in workload.output_buffers]
        self._buffers = {p.name: GuardedBuffer(device, p, n) for n, p in enumerate((*inputs, *outputs))}
        for p in inputs:
            device.copy(self._buffers[p.name].payload, held[p.name])
        payloads = {name: b.payload for name, b in self._buffers.items()}
        self._rotation = Rotation(
            device, payloads, (*inputs, *outputs), {**held, **initial}, rules.cold_bytes, is_host=self._is_host
        )

    def run(
        self,
        binary: CompiledKernel,
        announce: Callable[[TrialStage], None],
        anchor: Anchor | None,
        incumbent_seconds: float | None,
    ) -> RunReport:
        """Load, check and time ``binary``; ``announce`` is told each stage as it begins."""
        evidence = Evidence(
            input_seed=self._rules.seed,
            binary_key=hashlib.sha256(binary.code).hexdigest(),
            binary_bytes=len(binary.code),
            environment={**load(), **resources(binary), **self._compared_with()},
        )
        started, at = time.perf_counter(), TrialStage.LOAD

        def enter(stage: TrialStage) -> None:
            nonlocal at
            at = stage
            announce(stage)

        checked = None
        try:
            enter(TrialStage.LOAD)
            kernel = self._device.load(binary)
            enter(TrialStage.CHECK)
            buffers = self._arguments(binary.parameters)
            verdict = check(kernel, buffers, self._truth)
            evidence = self._judged(evidence, verdict)
            if verdict.failed is not None:
                return self._failed(verdict.failed, started, evidence)
            if binary.has_prologue:
                evidence = replace(evidence, environment={**evidence.environment, **_prologue(kernel, buffers)})
            checked = time.perf_counter()
            if incumbent_seconds is not None and verdict.launch_seconds > self._patience_seconds(incumbent_seconds):
                evidence = replace(evidence, environment={**evidence.environment, "stopped_early": 1.0})
                return RunReport(Timed((verdict.launch_seconds,)), Clocks(check=checked - started), evidence)
            enter(TrialStage.TIME)
            outcome, evidence = self._time(kernel, buffers, evidence, anchor, incumbent_seconds)
            timed = time.perf_counter()
            if isinstance(outcome, Timed):
                outcome = check_again(kernel, buffers, self._truth) or outcome
        except DeviceFault as error:
            failed = Failed(at, _FAULTS[error.fault], error.message)
            return self._failed(failed, started, evidence, checked, tainted=error.lost)
        except CompileError as error:
            return self._failed(Failed(at, Reason.LAUNCH_ERROR, error.message), started, evidence, checked)
        except MemoryError as error:
            return self._failed(Failed(at, Reason.RESOURCES, f"out of memory: {error}"), started, evidence, checked)
        except TilewrightError as error:
            return self._failed(Failed(at, Reason.LAUNCH_ERROR, error.message), started, evidence, checked)
        clocks = Clocks(check=checked - started + time.perf_counter() - timed, time=timed - checked)
        return RunReport(outcome, clocks, evidence, tainted=_taints(outcome))

    def _compared_with(self) -> dict[str, float]:
        return {} if self._oracle is None else {"oracle_configuration": float(self._oracle.configuration)}

    def judge(self, binary: CompiledKernel) -> Verdict:
        """Load and check ``binary`` without timing it. Raises DeviceFault, CompileError, InvalidParameter."""
        return check(self._device.load(binary), self._arguments(binary.parameters), self._truth)

    def _judged(self, evidence: Evidence, verdict: Verdict) -> Evidence:
        return replace(
            evidence,
            guard_bands_intact=verdict.guard_bands_intact,
            outputs_written=verdict.outputs_written,
            max_error=verdict.max_error,
            absolute_tolerance=max(e.absolute for e in self._truth.expected.values()),
            relative_tolerance=max(e.relative for e in self._truth.expected.values()),
        )

    def remeasure(self, binaries: Sequence[CompiledKernel], begin: Callable[[int], None]) -> RemeasureReport:
        """Time binaries that were checked before, interleaved; ``begin`` is told which one is next."""
        timers: list[Timer] = []
        at = 0

        def next_is(n: int) -> None:
            nonlocal at
            at = n
            begin(n)

        try:
            for n, binary in enumerate(binaries):
                next_is(n)
                timers.append(self._timer(self._device.load(binary), self._arguments(binary.parameters)))
            return RemeasureReport(tuple(interleaved_samples(timers, self._rotation.rules(self._rules.final), next_is)))
        except (TilewrightError, MemoryError) as error:
            return RemeasureReport(failed=at, tainted=isinstance(error, DeviceFault) and error.lost)

    def _timer(self, kernel: LoadedKernel, buffers: Sequence[GuardedBuffer]) -> Timer:
        workspace = {b.parameter.name: b.payload for b in buffers if b.parameter.role == "workspace"}
        return self._rotation.timer(kernel, [b.parameter.name for b in buffers], workspace)

    def _arguments(self, parameters: Sequence[KernelParameter]) -> list[GuardedBuffer]:
        """Return the buffers of a launch in the binary's order. Raises InvalidParameter where the binary wants
        others."""
        buffers: list[GuardedBuffer] = []
        for parameter in parameters:
            if parameter.role == "workspace":
                buffers.append(GuardedBuffer(self._device, parameter, len(self._buffers) + len(buffers)))
                continue
            known = self._buffers.get(parameter.name)
            if known is None or known.parameter != parameter:
                raise InvalidParameter(
                    f"the binary wants {parameter}, the workload has {known.parameter if known else 'no such buffer'}",
                    field=parameter.name,
                )
            buffers.append(known)
        missing = self._buffers.keys() - {p.name for p in parameters}
        if missing:
            raise InvalidParameter(f"the binary does not take {', '.join(sorted(missing))}", field="parameters")
        return buffers

    def _time(
        self,
        kernel: LoadedKernel,
        buffers: Sequence[GuardedBuffer],
        evidence: Evidence,
        anchor: Anchor | None,
        incumbent_seconds: float | None,
    ) -> tuple[Outcome, Evidence]:
        timer = self._timer(kernel, buffers)
        before, stolen = (disturbance(), stolen_seconds()) if self._is_host else (None, 0.0)
        timing = take_samples(timer, self._rotation.rules(self._rules.timing), incumbent_seconds=incumbent_seconds)
        environment = {
            **evidence.environment,
            **self._device.environment(),
            "timed_launches": float(timing.timed.launches_per_sample * len(timing.timed.samples)),
            "launched_seconds": round(timing.launched_seconds, 6),
            "argument_sets": float(len(self._rotation)),
            "stopped_early": float(timing.hopeless),
            "disturbed": float(timing.is_disturbed),
        }
        if before is not None:
            spoilt = disturbance().since(before)
            environment |= {
                "waiting_seconds": round(spoilt.waiting_seconds, 6),
                "stolen_seconds": round(stolen_seconds() - stolen, 3),
                "preemptions": float(spoilt.preemptions),
                "disturbed_samples": float(timing.disturbed),
            }
        evidence = replace(
            evidence, environment=environment, anchor_seconds=None if anchor is None else anchor.seconds()
        )
        if not timing.noisy:
            return timing.timed, evidence
        spread, middle = timing.timed.spread, timing.timed.seconds
        detail = f"quartiles {spread:.0%} apart after {timing.seconds:.2g} s, median {middle:.3g} s"
        return Failed(TrialStage.TIME, Reason.NOISY, detail), evidence

    def _patience_seconds(self, incumbent_seconds: float) -> float:
        """A launch that takes longer than this while it is checked need not be timed at all: it is far slower than the
        incumbent, and too slow for the machine to have made it so."""
        return max(_SLOW_LAUNCH_SECONDS, 2 * self._rules.timing.hopeless_ratio * incumbent_seconds)

    def _failed(
        self,
        failed: Failed,
        started: float,
        evidence: Evidence,
        checked: float | None = None,
        *,
        tainted: bool = False,
    ) -> RunReport:
        """``checked``: when its check ended well, if it did."""
        ended = time.perf_counter()
        clocks = Clocks(check=(checked or ended) - started, time=0.0 if checked is None else ended - checked)
        return RunReport(failed, clocks, evidence, tainted or _taints(failed))


def resources(binary: CompiledKernel) -> dict[str, float]:
    """Return what the compiler said the binary takes, the most of any of its functions; empty where it said nothing."""
    if not binary.resources:
        return {}
    dynamic = {grid.function: grid.shared_bytes for grid in binary.launches}
    found = binary.resources.items()
    return {
        "registers": float(max(r.registers for _, r in found)),
        "spill_bytes": float(max(r.spill_bytes for _, r in found)),
        "stack_bytes": float(max(r.stack_bytes for _, r in found)),
        "shared_bytes": float(max(r.static_shared_bytes + dynamic.get(name, 0) for name, r in found)),
    }


def _prologue(kernel: LoadedKernel, buffers: Sequence[GuardedBuffer]) -> dict[str, float]:
    """Return what is done once for all calls: not timed as part of any, but known."""
    began = time.perf_counter()
    kernel.prepare([b.payload for b in buffers])
    return {"prologue_seconds": round(time.perf_counter() - began, 6)}


def _taints(outcome: Outcome) -> bool:
    """A kernel that wrote where it must not may have damaged more than the guard bands."""
    return isinstance(outcome, Failed) and outcome.reason is Reason.OUT_OF_BOUNDS
