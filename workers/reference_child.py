"""The reference child computes random inputs and float64 references, apart from the process that has the device."""

from typing import cast

from ..core.errors import OutOfMemory, TilewrightError
from ..te.json import workload_from_json
from .frames import Frame
from .reference_data import compute_reference, store_reference
from .report import Announce
from .wire import Json


class ReferenceRole:
    """Answers ``{workload, descriptor}`` with ``{layout}``, where it put the reference_data in that file, or
    ``{error}``."""

    def __init__(self, setup: Json) -> None:
        self._seed = cast(int, setup["seed"])

    def answer(self, frame: Frame, announce: Announce) -> Frame:
        del announce
        try:
            reference_data = compute_reference(workload_from_json(frame.header["workload"]), self._seed)
            return Frame({"layout": store_reference(reference_data, cast(int, frame.header["descriptor"]))})
        except TilewrightError as error:
            return Frame({"error": error.message, "field": error.field})
        except MemoryError as error:
            text = f"inputs and reference do not fit into this machine's memory: {error}"
            return Frame({"error": text, "field": "", "code": OutOfMemory.code})
