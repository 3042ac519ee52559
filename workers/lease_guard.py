"""Until when a device may be used: what the holder of its lease knows by its own monotonic clock."""

import math
import time
from collections.abc import Callable

from ..core.fleet import LeaseLost

Allowed = Callable[[], float]
"""It tells until when the device may be used, in seconds of ``time.monotonic`` of this host, and raises LeaseLost once
that is past. Work that begins later than this is refused by the runner child, which shares the clock."""


def always() -> float:
    """The device needs no lease."""
    return math.inf


class LeaseGuard:
    """Says whether the lease of a device still holds (``Allowed``). A process that was stopped, or whose database is
    away, finds it ended.

    asked = time.monotonic()             # before the request is sent: the database counts from later on
    store.renew(lease, seconds)
    guard.renewed(asked + seconds)
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def renewed(self, until: float) -> None:
        """The lease lasts until then, in seconds of ``time.monotonic``."""
        self._until = until

    def revoke(self) -> None:
        """The lease is lost, whatever the clock says."""
        self._until = -math.inf

    def __call__(self) -> float:
        """Raises LeaseLost."""
        if time.monotonic() >= self._until:
            raise LeaseLost("the lease of this device has ended")
        return self._until
