"""Whether a kernel does what its workload says: written where it may, everywhere it must, with the right values."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import DType
from ..core.trial import Failed, Reason, Stage
from ..runtime.device import LoadedKernel
from .buffers import FILLINGS, Bytes, GuardedBuffer, position


@dataclass(frozen=True, slots=True)
class Expected:
    """One output as it should be. ``values``: float64, or the native dtype for integers and bool; C-contiguous."""

    values: NDArray[np.generic]
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


def check(
    kernel: LoadedKernel,
    buffers: Sequence[GuardedBuffer],
    inputs: Mapping[str, Bytes],
    expected: Mapping[str, Expected],
) -> Verdict:
    """Launch ``kernel`` on ``buffers`` (in the order of its parameters; inputs hold ``inputs``) and judge what it did.

    It is launched once on each filling of outputs, workspace and guard bands: whatever it writes by mistake differs
    from one of them, and an element that holds both of them in turn was never written.
    """
    outputs = [b for b in buffers if b.parameter.role == "output"]
    unwritten: dict[str, NDArray[np.int64]] = {}
    launch_seconds = math.inf
    for which in range(FILLINGS):
        for buffer in buffers:
            buffer.guard(which)
            if buffer.parameter.role != "input":
                buffer.poison(which)
        began = time.perf_counter()
        kernel.launch([b.payload for b in buffers])
        launch_seconds = min(launch_seconds, time.perf_counter() - began)
        trespass = next(filter(None, (b.trespass(which) for b in buffers)), None)
        if trespass is not None:
            return Verdict(Failed(Stage.CHECK, Reason.OUT_OF_BOUNDS, trespass), guard_bands_intact=False)
        for b in outputs:
            holes = b.poisoned(which)
            unwritten[b.parameter.name] = holes if which == 0 else np.intersect1d(holes, unwritten[b.parameter.name])
    spoilt = _spoilt_input(buffers, inputs)
    if spoilt is not None:
        return Verdict(Failed(Stage.CHECK, Reason.OUT_OF_BOUNDS, spoilt), guard_bands_intact=True)
    return replace(_judge(outputs, unwritten, expected), launch_seconds=launch_seconds)


def check_again(
    buffers: Sequence[GuardedBuffer], inputs: Mapping[str, Bytes], expected: Mapping[str, Expected]
) -> Failed | None:
    """What many launches after ``check`` broke that two did not: a race shows up here."""
    trespass = next(filter(None, (b.trespass(FILLINGS - 1) for b in buffers)), None) or _spoilt_input(buffers, inputs)
    if trespass is not None:
        return Failed(Stage.TIME, Reason.OUT_OF_BOUNDS, f"after repeated launches: {trespass}")
    for b in buffers:
        if b.parameter.role == "output":
            _, wrong = compare(b, expected[b.parameter.name])
            if wrong is not None:
                return Failed(Stage.TIME, Reason.WRONG_RESULT, f"right once, wrong after repeated launches: {wrong}")
    return None


def compare(buffer: GuardedBuffer, expected: Expected) -> tuple[float, str | None]:
    """(largest ``|got - want| / (absolute + relative * |want|)``, the first wrong element in words or None).

    Equal values, two NaNs and equal infinities have error 0. Where the tolerance is 0 any difference is an infinite
    error, as are a NaN or an infinity on one side only. Stops at the first block with a wrong element.
    """
    parameter = buffer.parameter
    want = expected.values.reshape(-1)
    largest = 0.0
    for start, block in buffer.blocks():
        first = start // parameter.dtype.bytes
        part = want[first : first + len(block) // parameter.dtype.bytes]
        got = block if parameter.dtype.is_bool else block.view(parameter.dtype.numpy)
        errors = _errors(got, part, expected, parameter.dtype)
        worst = float(errors.max())
        if not worst <= 1.0:
            at = int((errors > 1.0).argmax())
            place = f"{parameter.name}{position(first + at, parameter.shape)}"
            return worst, f"{place} is {got[at]}, should be {part[at]}; error {worst:.3g} times the tolerance"
        largest = max(largest, worst)
    return largest, None


def _errors(
    got: NDArray[np.generic], want: NDArray[np.generic], expected: Expected, dtype: DType
) -> NDArray[np.float64]:
    """Error of each element, never NaN. A bool is compared as the byte it is: 2 is no truth value."""
    with np.errstate(all="ignore"):
        wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
        errors: NDArray[np.float64] = np.abs(wide_got - wide_want)
        errors /= expected.absolute + expected.relative * np.abs(wide_want)
        if np.isfinite(errors).all():
            return errors
        # Integers are compared in their own type: float64 cannot tell large neighbours apart.
        equal = got == want if dtype.is_integer else wide_got == wide_want
        same = equal | (np.isnan(wide_got) & np.isnan(wide_want))
        return np.where(same, 0.0, np.where(np.isfinite(errors) & np.isfinite(wide_want), errors, np.inf))


def _spoilt_input(buffers: Sequence[GuardedBuffer], inputs: Mapping[str, Bytes]) -> str | None:
    for b in buffers:
        if b.parameter.role == "input" and b.differs_from(inputs[b.parameter.name]):
            return f"{b.name} was written; inputs are only read"
    return None


def _judge(
    outputs: Sequence[GuardedBuffer], unwritten: Mapping[str, NDArray[np.int64]], expected: Mapping[str, Expected]
) -> Verdict:
    for b in outputs:
        holes = unwritten[b.parameter.name]
        if len(holes):
            first = position(int(holes[0]), b.parameter.shape)
            total = b.nbytes // b.parameter.dtype.bytes
            detail = f"{len(holes)} of {total} elements of {b.name} were never written, the first at {first}"
            return Verdict(Failed(Stage.CHECK, Reason.UNWRITTEN, detail), True, False)
    largest = 0.0
    for b in outputs:
        error, wrong = compare(b, expected[b.parameter.name])
        if wrong is not None:
            failed = Failed(Stage.CHECK, Reason.WRONG_RESULT, wrong)
            return Verdict(failed, True, True, error if np.isfinite(error) else None)
        largest = max(largest, error)
    return Verdict(None, True, True, largest)
