"""The compilation pool compiles schedules for people, in children, so that nothing that a compiler does reaches the
process that asks: it does not slow it down, and an abort ends one child.

    ask ─ kept? ─▶ answer
        ─ asked already? ─▶ wait for that one
        ─ else ─▶ queue ─▶ child, with a deadline ─▶ keep, answer
"""

import threading
from collections import OrderedDict
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from ..core.cgroups import processor_count
from ..core.errors import (
    CompileError,
    IllegalSchedule,
    InvalidParameter,
    InvalidWorkload,
    ResourcesExceeded,
    TilewrightError,
    UnsupportedTarget,
    WorkerLost,
)
from ..core.keys import content_key
from ..core.trial import Failed, Reason, TrialStage
from .child_environment import library_threads
from .child_supervisor import ChildSupervisor
from .frames import Frame, pack, unpack
from .pool import WorkerPool
from .sandbox import Sandbox
from .settings import ExecutorSettings
from .wire import Json

KEPT_BYTES = 64 << 20
MOST_CHILDREN = 4
QUEUE_SECONDS = 60.0
"""So long a question waits for its turn, beyond the deadline of a compilation."""
_ERRORS: dict[str, type[TilewrightError]] = {
    kind.code: kind
    for kind in (CompileError, IllegalSchedule, InvalidParameter, InvalidWorkload, ResourcesExceeded, UnsupportedTarget)
}


class CompilationSupervisor(ChildSupervisor):
    """The supervisor of a compilation child, which may start a linker and a disassembler."""

    def __init__(self, settings: ExecutorSettings, compiler: str) -> None:
        setup: Json = {"role": "compile", "compiler": compiler}
        memory_bytes = settings.builder_memory_bytes
        sandbox = Sandbox(memory_bytes=memory_bytes, programs=True)
        super().__init__(setup, settings, environment=library_threads(1), sandbox=sandbox, memory_bytes=memory_bytes)

    def ask(self, question: Json) -> Frame:
        """Return the answer to a question. Raises what the compiler refused with, CompileError where the question cost
        two children, and WorkerLost where no child starts."""
        frame = self._candidate(Frame(question), TrialStage.COMPILE, lambda: None)
        if isinstance(frame, Failed):
            kind = {Reason.WORKER_LOST: WorkerLost, Reason.RESOURCES: ResourcesExceeded}.get(frame.reason, CompileError)
            raise kind(frame.detail)
        if "error" in frame.header:
            kind = _ERRORS.get(str(frame.header["code"]), CompileError)
            raise kind(str(frame.header["error"]), field=str(frame.header["field"]))
        return frame


class CompilationPool:
    """Answers questions by children that compile. It is thread-safe. Its children start with the first question.
    ``compiler`` is what they answer with, as ``module:function``."""

    def __init__(
        self, settings: ExecutorSettings, *, compiler: str = "tilewright.workers.compilation_child:compiled"
    ) -> None:
        self._settings = settings
        self._compiler = compiler
        self._lock = threading.Lock()
        self._pool: WorkerPool[CompilationSupervisor] | None = None
        self._asked: dict[str, Future[Frame]] = {}
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._closed = False

    def ask(self, question: Json) -> tuple[Any, tuple[bytes, ...]]:
        """Return (answer, blobs); see ``compilation_child``. Waits.

        Raises IllegalSchedule, CompileError, UnsupportedTarget, InvalidParameter, and WorkerLost where there are too
        many questions, or no child starts.
        """
        key = content_key(question)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
            else:
                asked = self._asked.get(key)
                future = asked or self._begun().submit(lambda supervisor: supervisor.ask(question))
                self._asked[key] = future
        if kept is not None:
            frame = unpack(kept)
            return frame.header["answer"], frame.blobs
        if asked is None:  # without the lock: a future that is done already calls back at once
            future.add_done_callback(lambda done: self._ended(key, done))
        try:
            frame = future.result(QUEUE_SECONDS + self._settings.deadlines.compile)
        except FutureTimeout as error:
            future.cancel()
            raise WorkerLost("too many schedules are being compiled; try again") from error
        except CancelledError as error:
            raise WorkerLost("the service is stopping, or too many schedules are being compiled; try again") from error
        return frame.header["answer"], frame.blobs

    def close(self) -> None:
        """End the children. A second call does nothing."""
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            pool.close()

    def _begun(self) -> WorkerPool[CompilationSupervisor]:
        if self._closed:
            raise WorkerLost("the service is stopping")
        if self._pool is None:
            count = max(1, min(MOST_CHILDREN, processor_count() // 2))
            self._pool = WorkerPool(
                [CompilationSupervisor(self._settings, self._compiler) for _ in range(count)], "compilation"
            )
        return self._pool

    def _ended(self, key: str, done: Future[Frame]) -> None:
        """Keep an answer, packed: the collector would go through its lists again and again. Refusals are not kept: what
        is missing may be installed meanwhile."""
        packed = None if done.cancelled() or done.exception() is not None else pack(done.result())
        with self._lock:
            del self._asked[key]
            if packed is None or len(packed) > KEPT_BYTES:
                return
            self._kept[key] = packed
            self._kept_bytes += len(packed)
            while self._kept_bytes > KEPT_BYTES:
                _, freed = self._kept.popitem(last=False)
                self._kept_bytes -= len(freed)
