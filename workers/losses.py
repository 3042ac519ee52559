"""Losses of machines. They end an attempt at a task, and are never trials: the candidate in hand is measured again."""

from typing import ClassVar

from ..core.errors import WorkerLost
from ..core.fleet import AttemptEnd


class Abandoned(WorkerLost):
    """Somebody gave up what was under way, so that its process was killed. Nothing is wrong with the machine."""

    def __init__(self) -> None:
        super().__init__("the measurement was abandoned")


class MachineLost(WorkerLost):
    """What carried the work is gone; ``end`` says how the attempt ended."""

    code = "MACHINE_LOST"
    end: ClassVar[AttemptEnd]


class ActorLost(MachineLost):
    """A process on a healthy host ended, or went silent. ``began``: it lived when the call reached it, so that the call
    may be what ended it."""

    code = "ACTOR_LOST"
    end = AttemptEnd.ACTOR_LOST

    def __init__(self, message: str, *, began: bool = True) -> None:
        super().__init__(message)
        self.began = began


class NodeLost(MachineLost):
    """A host left the cluster, or is out of reach."""

    code = "NODE_LOST"
    end = AttemptEnd.NODE_LOST


class DeviceLost(MachineLost):
    """The device does not open, or was found unhealthy."""

    code = "DEVICE_LOST"
    end = AttemptEnd.DEVICE_FAULT


class DriverLost(MachineLost):
    """The connection to the cluster broke."""

    code = "DRIVER_LOST"
    end = AttemptEnd.DRIVER_LOST
