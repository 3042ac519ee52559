"""The builder child turns schedules into binaries."""

import gc
import time
from collections.abc import Callable
from importlib import import_module

from ..codegen.backend import CompiledKernel
from ..core.errors import (
    CompileError,
    IllegalSchedule,
    InvalidKernel,
    InvalidParameter,
    ResourcesExceeded,
    TilewrightError,
)
from ..core.schedule import Schedule
from ..core.target import Target
from ..core.trial import Failed, Reason, TrialStage
from ..te.dynamic import representative_extents
from ..te.json import workload_from_json
from ..te.triton import TritonWorkload
from ..te.workload import Workload
from .frames import Frame
from .report import Announce
from .wire import Json, binary_to_frame, outcome_to_json, target_from_json

_COLLECTED = 64
"""How many builds come between two garbage collections."""

Build = Callable[[Workload, Target, Schedule], CompiledKernel]


class BuilderRole:
    """It answers ``{workload, schedule}`` with a binary or a failure, and with the ``seconds`` that this took. A binary
    with a dynamic extent comes with the launches of the representative one, where it is measured."""

    def __init__(self, setup: Json) -> None:
        self._target = target_from_json(setup["target"])
        module, name = str(setup["builder"]).split(":")
        self._build: Build = getattr(import_module(module), name)
        self._accept_code = bool(setup["accept_code"])
        self._workload: tuple[object, Workload] | None = None
        self._answered = 0

    def answer(self, frame: Frame, announce: Announce) -> Frame:
        if self._answered == 0:
            gc.freeze()  # the million objects of a kernel form no cycles: reference counts free them
            gc.disable()
        started = time.perf_counter()
        outcome = self._built(frame.header)
        self._answered += 1
        if self._answered % _COLLECTED == 0:
            gc.collect()
        seconds = time.perf_counter() - started
        if isinstance(outcome, Failed):
            return Frame({"seconds": seconds, "outcome": outcome_to_json(outcome)})
        return binary_to_frame(outcome, {"seconds": seconds})

    def _built(self, request: Json) -> CompiledKernel | Failed:
        try:
            schedule = Schedule.from_json(request["schedule"])
            workload = self._parsed(request["workload"])
            binary = self._build(workload, self._target, schedule)
            return binary.at_extent(*representative_extents(workload))
        except (IllegalSchedule, InvalidParameter) as error:
            return Failed(TrialStage.LOWER, Reason.ILLEGAL_SCHEDULE, _text(error))
        except InvalidKernel as error:
            return Failed(TrialStage.LOWER, Reason.COMPILE_ERROR, f"lowered to an invalid kernel: {_text(error)}")
        except ResourcesExceeded as error:
            return Failed(TrialStage.COMPILE, Reason.RESOURCES, error.message)
        except CompileError as error:
            return Failed(TrialStage.COMPILE, Reason.COMPILE_ERROR, error.message)
        except MemoryError:
            return Failed(TrialStage.COMPILE, Reason.RESOURCES, "the compiler ran out of memory")
        except Exception as error:  # a bug in a sketch or an emitter costs this candidate, not the job
            return Failed(TrialStage.COMPILE, Reason.COMPILE_ERROR, f"{type(error).__name__}: {error}")

    def _parsed(self, data: object) -> Workload:
        """Return the parsed workload. Candidates of one workload follow each other, so the last one is kept."""
        if self._workload is None or self._workload[0] != data:
            workload = workload_from_json(data)
            if isinstance(workload, TritonWorkload) and not self._accept_code:
                raise InvalidParameter("a Triton kernel is code, which is not built here: accept_code is off")
            self._workload = (data, workload)
        return self._workload[1]


def _text(error: TilewrightError) -> str:
    return f"{error.field}: {error.message}" if error.field else error.message
