"""The runner child owns the device. It checks and times binaries on it, one after the other."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from ..codegen.backends import backend_for
from ..core.errors import (
    CompileError,
    DeviceFault,
    InvalidParameter,
    OutOfMemory,
    TilewrightError,
    UnsupportedTarget,
    WorkerLost,
)
from ..core.keys import content_key
from ..core.target import DeviceInfo, Profile
from ..core.trial import TrialStage
from ..runtime.anchor import load_anchor
from ..runtime.devices import open_device
from ..te.data import random_inputs
from ..te.dynamic import at_representative
from ..te.json import workload_from_json
from .device_lock import DeviceLock
from .environment import disturbance
from .frames import Frame
from .harness import HarnessRules, MeasurementHarness
from .oracle import Oracle
from .peaks_cache import recent_peaks
from .reference_data import map_reference
from .report import Announce
from .timing import Sample, take_samples
from .wire import (
    Json,
    binaries_from_frame,
    binary_from_frame,
    device_to_json,
    final_from_json,
    outcome_to_json,
    profile_from_json,
    report_to_json,
    rules_from_json,
    target_from_json,
)

_ASSUMED_CACHE_BYTES = 64 << 20
_log = logging.getLogger(__name__)

TIMED = ("prepare", "run", "remeasure", "baseline", "peaks", "probe")
"""The questions for which the device must be locked: they time on it, or would disturb another program that does. They
may say ``until`` when the device may be used, by the monotonic clock that parent and child share."""


class RunnerRole:
    """It answers ``{ask: ...}`` with an object. ``error`` in the object says why there is nothing else in it."""

    def __init__(self, setup: Json) -> None:
        self._target = target_from_json(setup["target"])
        self._device = open_device(self._target.kind, self._target)
        name, uuid, fence = self._device.lock_name, str(setup["uuid"]), cast(int, setup["fence"])
        self._uuid = uuid
        if name and name != uuid:
            raise UnsupportedTarget(f"device {uuid} was asked for; the driver shows {name}", field="target")
        folder = Path(str(setup["lock_folder"])) if setup["lock_folder"] else None
        self._device_lock = DeviceLock(uuid if name or fence else "", folder, fence)  # who leased it has it alone
        self._profile = profile_from_json(setup["profile"])
        self._timing = rules_from_json(setup["timing"])
        self._final = final_from_json(setup["final"])
        self._seed = cast(int, setup["seed"])
        self._anchor = load_anchor(self._device)
        self._harness: MeasurementHarness | None = None

    def answer(self, frame: Frame, announce: Announce) -> Frame:
        question = str(frame.header["ask"])
        if question not in TIMED:
            return self._answer(question, frame, announce)
        until = cast(float, frame.header.get("until", math.inf))
        with self._device_lock.held(partial(self._tell_of_waiting, announce)):
            if time.monotonic() >= until:
                return Frame({"too_late": True})
            announce("load" if question in ("run", "remeasure") else question)
            return self._answer(question, frame, announce)

    def _tell_of_waiting(self, announce: Announce) -> None:
        name = self._device.info.name
        announce("wait")
        _log.warning("waiting for %s: another program is timing on it (%s)", name, self._device.lock_name)

    def _answer(self, question: str, frame: Frame, announce: Announce) -> Frame:
        if question in ("run", "remeasure"):
            if self._harness is None:
                raise WorkerLost("a binary came before its workload")
            return Frame((self._run if question == "run" else self._play)(self._harness, frame, announce))
        answers: Mapping[str, Callable[[Json], Json]] = {
            "describe": self._describe,
            "baseline": self._baseline,
            "peaks": self._peaks,
            "probe": self._probe,
        }
        try:
            return Frame(self._prepare(frame) if question == "prepare" else answers[question](frame.header))
        except TilewrightError as error:
            return Frame({"error": error.message, "field": error.field})
        except MemoryError as error:
            text = f"the buffers of this workload do not fit into the memory of {self._device.info.name}: {error}"
            return Frame({"error": text, "field": "", "code": OutOfMemory.code})

    def _describe(self, request: Json) -> Json:
        del request
        toolchain = backend_for(self._target).toolchain(self._target)
        return {"device": device_to_json(self._device.info), "toolchain": dict(toolchain.components)}

    def _prepare(self, frame: Frame) -> Json:
        """Set up the harness for a workload, whose reference data are where ``layout`` says. A binary that comes with
        it is the oracle; ``oracle_failed`` says why that cannot be launched."""
        self._harness = None  # frees the memory of the last workload before the next one needs some
        request = frame.header
        workload = at_representative(workload_from_json(request["workload"]))
        oracle = Oracle(binary_from_frame(frame), cast(int, request["configuration"])) if frame.blobs else None
        reference_data = map_reference(cast(Json, request["layout"]))
        rules = HarnessRules(self._timing, self._final, cold_bytes(self._device.info, self._profile), self._seed)
        try:
            self._harness = MeasurementHarness(self._device, workload, reference_data, rules, oracle)
        except (DeviceFault, CompileError) as error:
            if oracle is None:
                raise
            return {"oracle_failed": error.message}
        return {}

    def _run(self, bench: MeasurementHarness, frame: Frame, announce: Announce) -> Json:
        incumbent = cast(float | None, frame.header["incumbent_seconds"])
        report = bench.run(binary_from_frame(frame), lambda stage: announce(stage.value), self._anchor, incumbent)
        return report_to_json(report)

    def _play(self, bench: MeasurementHarness, frame: Frame, announce: Announce) -> Json:
        final = bench.remeasure(binaries_from_frame(frame), lambda n: announce(TrialStage.TIME.value, n))
        return {"samples": [list(s) for s in final.samples], "failed": final.failed, "tainted": final.tainted}

    def _baseline(self, request: Json) -> Json:
        """Time the operator's NumPy form on the data that candidates get."""
        from ..te.operators import OPERATORS  # most runners need none of them

        name = str(request["operator"])
        if name not in OPERATORS:
            raise InvalidParameter(f"no operator {name!r}; known: {', '.join(OPERATORS)}", field="operator")
        operator = OPERATORS[name]
        parameters = cast(Json, request["parameters"])
        inputs = random_inputs(operator.workload(parameters), self._seed)

        def timer(launches: int) -> Sample:
            before, started = disturbance(), time.perf_counter()
            for _ in range(launches):
                operator.numpy(parameters, inputs)
            seconds = time.perf_counter() - started
            return Sample(seconds, launches, disturbance().since(before).waiting_seconds)

        return {"outcome": outcome_to_json(take_samples(timer, self._timing).timed)}

    def _peaks(self, request: Json) -> Json:
        key = content_key({**self._describe(request), "uuid": self._uuid})
        return {"peaks": recent_peaks(key, self._device.measure_peaks)}

    def _probe(self, request: Json) -> Json:
        """Time the anchors."""
        del request
        power = self._device.power_anchor_seconds()
        anchor: Json = {"anchor_seconds": self._anchor.seconds()}
        return anchor if power is None else {**anchor, "power_anchor_seconds": power}


def cold_bytes(info: DeviceInfo, profile: Profile) -> int:
    """Return how many bytes must pass through the caches until they are cold: twice the last level, and 0 for a warm
    profile."""
    if profile.cache == "warm":
        return 0
    caches = [size for name, size in info.hardware.items() if name in ("l2_bytes", "l3_bytes", "l4_bytes")]
    return 2 * int(max(caches, default=_ASSUMED_CACHE_BYTES))
