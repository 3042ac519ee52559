"""A supervisor owns one child process, replaces it when it dies, and turns its death into an outcome.

All calls block.
"""

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.errors import OutOfMemory, TilewrightError, WorkerLost
from ..core.fleet import Unit
from ..core.target import Profile, Target
from ..core.trial import Failed, Reason, TrialStage
from .child import Child, ChildDied, ChildHung, ChildOverfull
from .frames import Frame
from .losses import Abandoned
from .sandbox import Sandbox
from .settings import ExecutorSettings
from .wire import Json

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What all supervisors of an executor have to know. ``unit`` is the physical device, of which ``target`` may be a
    part; ``fence`` is that of the lease on it, and 0 without one."""

    target: Target
    profile: Profile
    seed: int
    settings: ExecutorSettings
    unit: Unit
    fence: int = 0


class ChildSupervisor:
    """Owns one child, and replaces it after it has died.

    Calls come from one thread, which must live as long as the supervisor; ``Child`` says why. ``interrupt`` may come
    from any thread.
    """

    def __init__(
        self,
        setup: Json,
        settings: ExecutorSettings,
        *,
        environment: Mapping[str, str],
        descriptors: tuple[int, ...] = (),
        sandbox: Sandbox | None = None,
        memory_bytes: int = 0,
    ) -> None:
        """With ``memory_bytes``, a child and what it starts may have so much memory together, where it can have a
        control group."""
        self._setup = Frame(setup if sandbox is None else {**setup, "sandbox": sandbox.to_json()})
        self._low_priority = sandbox is not None and sandbox.low_priority
        self._own_folder = sandbox is not None and not sandbox.files
        self._memory_bytes = memory_bytes
        self._python_path = settings.python_path
        self._deadlines = settings.deadlines.by_stage()
        self._environment = environment
        self._descriptors = descriptors
        self._child: Child | None = None
        self._candidates = 0
        self._interrupted = False

    @property
    def is_lost(self) -> bool:
        """Never: it replaces its child as often as it has to."""
        return False

    def start(self) -> None:
        """Spawn a child if there is none. The first request waits until it has started."""
        if self._child is None:
            self._candidates = 0
            self._child = Child(
                self._setup,
                python_path=self._python_path,
                environment=self._environment,
                descriptors=self._descriptors,
                own_folder=self._own_folder,
                memory_bytes=self._memory_bytes,
                low_priority=self._low_priority,
            )

    def resume(self) -> None:
        """Forget earlier interruptions, since a new call begins."""
        self._interrupted = False

    def interrupt(self) -> None:
        """Make the call in progress raise WorkerLost soon, by killing the child under it."""
        self._interrupted = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the child."""
        self._drop()

    def _candidate(
        self,
        frame: Frame,
        first_stage: TrialStage,
        before: Callable[[], None],
        deadlines: Mapping[str, float] | None = None,
    ) -> Frame | Failed:
        """Return the answer to one candidate, or a failure that says how the candidate killed the child.

        A candidate gets a second attempt in a new child in two cases: the child that it crashed had served other
        candidates, which may have damaged its memory; or the child was killed from outside.
        """
        for attempt in (1, 2):
            before()
            self._candidates += 1
            try:
                return self._ask(frame, first_stage.value, deadlines)
            except ChildHung as hung:
                _log.info("a candidate is given up: %s", hung.message)
                reason = Reason.RESOURCES if isinstance(hung, ChildOverfull) else Reason.TIMEOUT
                return Failed(TrialStage(hung.stage), reason, hung.message)
            except ChildDied as died:
                _log.info("a child is replaced: %s", died.message)
                blameless = died.signal == signal.SIGKILL or self._candidates > 1
                if attempt == 2 or not blameless:
                    return failure_of(died)
            finally:
                if self._child is None:
                    self.start()
        raise AssertionError("unreachable: the second attempt returns")

    def _ask(self, frame: Frame, first_stage: str, deadlines: Mapping[str, float] | None = None) -> Frame:
        """Return the answer to one request. A child that dies of it is dropped."""
        child = self._greeted()
        try:
            return child.request(frame, first_stage=first_stage, deadlines=deadlines or self._deadlines)
        except TilewrightError as error:
            self._drop()
            if self._interrupted:
                raise Abandoned() from error
            raise

    def _greeted(self) -> Child:
        """Return the child, once it is ready. A child that was killed while it started is replaced once. Raises
        WorkerLost."""
        for attempt in (1, 2):
            self.start()
            assert self._child is not None
            try:
                if self._interrupted:  # looked at after there is a child that ``interrupt`` could have seen
                    raise Abandoned()
                self._child.greet(self._deadlines["start"])
                break
            except WorkerLost:
                self._drop()
                if self._interrupted or attempt == 2:
                    raise
        assert self._child is not None
        return self._child

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _question(self, question: Json, stage: str, blobs: tuple[bytes, ...] = ()) -> Json:
        """Return the answer to a question that is about no candidate. ``blobs`` go with it.

        A child that was killed from outside is replaced and asked once more. Raises OutOfMemory where the child says
        so, and WorkerLost with the child's own message where there is no answer.
        """
        for attempt in (1, 2):
            try:
                answer = self._ask(Frame(question, blobs), stage).header
                break
            except (ChildDied, ChildHung) as error:
                killed = isinstance(error, ChildDied) and error.signal == signal.SIGKILL
                if not killed or attempt == 2:
                    raise WorkerLost(f"a worker failed to {question['ask']}: {error.message}") from error
        if answer.get("code") == OutOfMemory.code:
            raise OutOfMemory(str(answer["error"]))
        if "error" in answer:
            raise WorkerLost(f"a worker failed to {question['ask']}: {answer['error']}")
        return answer


def failure_of(died: ChildDied) -> Failed:
    """Return what the death of a child says about the candidate that was in it."""
    stage = TrialStage(died.stage)
    if died.signal == signal.SIGKILL:
        reason = Reason.WORKER_LOST
    elif stage is TrialStage.COMPILE:
        reason = Reason.COMPILE_ERROR
    else:
        reason = Reason.ILLEGAL_ACCESS if died.signal in _CRASHES else Reason.LAUNCH_ERROR
    return Failed(stage, reason, died.message)
