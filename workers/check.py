"""Whether a kernel does what its workload says: written where it may, everywhere it must, with the right values."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.trial import Failed, Reason, TrialStage
from ..runtime.device import Device, LoadedKernel, Memory, PatternMatches
from .buffers import FILLINGS, GuardedBuffer, position


@dataclass(frozen=True, slots=True)
class Expected:
    """One output as it should be, on the device. ``values``: float64, or the native dtype for integers and bool."""

    values: Memory
    absolute: float
    relative: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """``failed`` is None for a correct kernel. The flags are None when the check did not get that far.
    ``launch_seconds``: the shorter of the two launches, caches as they were."""

    failed: Failed | None
    guard_bands_intact: bool | None = None
    outputs_written: bool | None = None
    max_error: float | None = None
    launch_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Truth:
    """What kernels on ``device`` are judged by: ``inputs`` as they must stay, and ``expected`` outputs, by name.
    ``initial``: what outputs hold before a launch that a kernel may read, or leave as they are."""

    device: Device
    inputs: Mapping[str, Memory]
    expected: Mapping[str, Expected]
    initial: Mapping[str, Memory] = field(default_factory=dict)


def check(kernel: LoadedKernel, buffers: Sequence[GuardedBuffer], truth: Truth) -> Verdict:
    """Launch ``kernel`` on ``buffers`` (in the order of its parameters; inputs hold the truth's) and judge what it did.

    It is launched once on each filling of outputs, workspace and guard bands: whatever it writes by mistake differs
    from one of them, and an element that holds both of them in turn was never written.
    Outputs with initial contents get these instead.
    """
    outputs = [b for b in buffers if b.parameter.role == "output" and b.parameter.name not in truth.initial]
    unwritten: dict[str, PatternMatches] = {}
    launch_seconds = math.inf
    for which in range(FILLINGS):
        for buffer in buffers:
            buffer.guard(which)
            if buffer.parameter.role != "input":
                buffer.poison(which)
        _restore(buffers, truth)
        began = time.perf_counter()
        kernel.launch([b.payload for b in buffers])
        launch_seconds = min(launch_seconds, time.perf_counter() - began)
        trespass = next(filter(None, (b.trespass(which) for b in buffers)), None)
        if trespass is not None:
            return Verdict(Failed(TrialStage.CHECK, Reason.OUT_OF_BOUNDS, trespass), guard_bands_intact=False)
        for b in outputs:
            unwritten[b.parameter.name] = b.poisoned(which, unwritten.get(b.parameter.name))
    spoilt = _spoilt_input(buffers, truth)
    if spoilt is not None:
        return Verdict(Failed(TrialStage.CHECK, Reason.OUT_OF_BOUNDS, spoilt), guard_bands_intact=True)
    return replace(_judge(buffers, unwritten, truth), launch_seconds=launch_seconds)


def check_again(kernel: LoadedKernel, buffers: Sequence[GuardedBuffer], truth: Truth) -> Failed | None:
    """Return what many launches after ``check`` broke that two did not: a race shows up here. A kernel that adds to
    what outputs hold is launched once more, on their initial contents."""
    if truth.initial:
        _restore(buffers, truth)
        kernel.launch([b.payload for b in buffers])
    trespass = next(filter(None, (b.trespass(FILLINGS - 1) for b in buffers)), None) or _spoilt_input(buffers, truth)
    if trespass is not None:
        return Failed(TrialStage.TIME, Reason.OUT_OF_BOUNDS, f"after repeated launches: {trespass}")
    for b in buffers:
        if b.parameter.role == "output":
            _, wrong = compare(b, truth)
            if wrong is not None:
                return Failed(TrialStage.TIME, Reason.WRONG_RESULT, f"right once, wrong after more launches: {wrong}")
    return None


def compare(buffer: GuardedBuffer, truth: Truth) -> tuple[float, str | None]:
    """(the largest error, see ``runtime.device.Device.compare``; the first wrong element in words, or None)."""
    parameter, expected = buffer.parameter, truth.expected[buffer.parameter.name]
    found = truth.device.compare(buffer.payload, parameter.dtype, expected.values, expected.absolute, expected.relative)
    if found.wrong is None:
        return found.largest, None
    place = f"{parameter.name}{position(found.wrong, parameter.shape)}"
    return (
        found.largest,
        f"{place} is {found.got}, should be {found.want}; error {found.largest:.3g} times the tolerance",
    )


def _spoilt_input(buffers: Sequence[GuardedBuffer], truth: Truth) -> str | None:
    for b in buffers:
        if b.parameter.role == "input" and truth.device.differs(b.payload, truth.inputs[b.parameter.name]):
            return f"{b.name} was written; inputs are only read"
    return None


def _restore(buffers: Sequence[GuardedBuffer], truth: Truth) -> None:
    for b in buffers:
        if b.parameter.name in truth.initial:
            truth.device.copy(b.payload, truth.initial[b.parameter.name])


def _judge(buffers: Sequence[GuardedBuffer], unwritten: Mapping[str, PatternMatches], truth: Truth) -> Verdict:
    outputs = [b for b in buffers if b.parameter.role == "output"]
    for b in outputs:
        holes = unwritten.get(b.parameter.name)
        if holes is not None and holes.first is not None:
            first = position(holes.first, b.parameter.shape)
            total = b.nbytes // b.parameter.dtype.bytes
            detail = f"{holes.count} of {total} elements of {b.name} were never written, the first at {first}"
            return Verdict(Failed(TrialStage.CHECK, Reason.UNWRITTEN, detail), True, False)
    largest = 0.0
    for b in outputs:
        error, wrong = compare(b, truth)
        if wrong is not None:
            failed = Failed(TrialStage.CHECK, Reason.WRONG_RESULT, wrong)
            return Verdict(failed, True, True, error if math.isfinite(error) else None)
        largest = max(largest, error)
    return Verdict(None, True, True, largest)
