"""Reference data of workloads, computed by a child of their own, ahead of the time they are needed at.

They lie in a few anonymous files that every child of a runner inherits. When all are in use, the one that was asked
for longest ago, and is not that of the workload in hand, makes room.
"""

import os
from concurrent.futures import CancelledError, Future

from .child_environment import library_threads
from .child_supervisor import ChildSupervisor, WorkerSpec
from .losses import Abandoned
from .pool import WorkerPool
from .reference_data import anonymous_file
from .sandbox import Sandbox
from .wire import Json

SLOTS = 3
"""How many workloads have their data kept: the one in hand, the next, and one whose data is being computed."""
_THREADS = 4


class ReferenceCache:
    """``prepare`` and ``layout`` come from one thread, ``abandon`` from any."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.descriptors = tuple(anonymous_file() for _ in range(SLOTS))
        self._free = list(self.descriptors)
        self._slots: list[_Slot] = []
        self._current: _Slot | None = None
        self._pool = WorkerPool([ReferenceSupervisor(spec, self.descriptors)], "data")

    def prepare(self, workload: Json) -> None:
        """Begin with a workload, unless it has been begun with; returns at once."""
        self._find(workload)

    def layout(self, workload: Json) -> Json:
        """Return where the reference_data of ``workload`` is: what ``map_reference`` takes. Waits for it.

        Raises WorkerLost or OutOfMemory when there is none."""
        kept = self._current = self._find(workload)
        try:
            return kept.layout.result()
        except CancelledError as error:
            self._forget(kept)
            raise Abandoned() from error
        except BaseException:
            self._forget(kept)
            raise

    def abandon(self) -> None:
        """Stop what is being computed."""
        self._pool.abandon()

    def close(self) -> None:
        self._pool.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _find(self, workload: Json) -> "_Slot":
        """Return the reference_data of ``workload``, done or begun, now the one that was needed last."""
        for kept in self._slots:
            if kept.workload == workload and not kept.layout.cancelled():
                self._slots.remove(kept)
                self._slots.append(kept)
                return kept
        for stale in [k for k in self._slots if k.layout.cancelled()]:
            self._forget(stale)
        if not self._free:
            oldest = next(k for k in self._slots if k is not self._current)  # that one is being read
            oldest.layout.cancel()
            self._forget(oldest)
        descriptor = self._free.pop()
        # the one child works in the order it is asked, so a file is never written by two, nor while it is still read
        kept = _Slot(
            workload, descriptor, self._pool.submit(lambda supervisor: supervisor.prepare(workload, descriptor))
        )
        self._slots.append(kept)
        return kept

    def _forget(self, kept: "_Slot") -> None:
        self._slots.remove(kept)
        self._free.append(kept.descriptor)


class _Slot:
    """A reference_data and its file; ``layout`` is there once it is computed."""

    def __init__(self, workload: Json, descriptor: int, layout: Future[Json]) -> None:
        self.workload = workload
        self.descriptor = descriptor
        self.layout = layout


class ReferenceSupervisor(ChildSupervisor):
    """Computes the reference data of workloads, in a child without a device."""

    def __init__(self, spec: WorkerSpec, descriptors: tuple[int, ...]) -> None:
        setup: Json = {"role": "prepare", "seed": spec.seed}
        sandbox = Sandbox(files=True, low_priority=False)
        environment = library_threads(_THREADS)
        super().__init__(setup, spec.settings, environment=environment, descriptors=descriptors, sandbox=sandbox)

    def prepare(self, workload: Json, descriptor: int) -> Json:
        """Compute the reference data into the file and say where it is. Raises WorkerLost, OutOfMemory."""
        question: Json = {"ask": "prepare", "workload": workload, "descriptor": descriptor}
        layout = self._question(question, "prepare")["layout"]
        assert isinstance(layout, dict)
        return layout
