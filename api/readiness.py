"""Says whether the service is ready, soon, whatever its database does."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import anyio
import anyio.to_thread

from .. import __version__
from ..service.views import HealthView

PATIENCE_SECONDS = 0.03
"""So long a request waits for a check, once there was one."""
SILENT_SECONDS = 2.0
"""Checks take a few milliseconds. One that takes so long has met a database that does not answer."""


class Readiness:
    """Belongs to one event loop. There is one check at a time, in a thread of its own."""

    def __init__(self, check: Callable[[], HealthView]) -> None:
        self._check = check
        self._latest: HealthView | None = None
        self._running: asyncio.Task[HealthView] | None = None
        self._began = 0.0
        self._limiter = anyio.CapacityLimiter(1)

    async def view(self) -> HealthView:
        """Return the result of a check that is made now. Where it takes long, return that of the one before; where it
        takes too long, say so."""
        if self._running is None:
            self._began = time.monotonic()
            self._running = asyncio.create_task(self._checked())
        patience = SILENT_SECONDS if self._latest is None else PATIENCE_SECONDS
        await asyncio.wait((self._running,), timeout=patience)
        silent = time.monotonic() - self._began
        if self._latest is None or (self._running is not None and silent >= SILENT_SECONDS):
            known = self._latest or HealthView(False, __version__)
            told = f"it has not answered for {silent:.0f} s"
            return replace(known, ready=False, checks={**known.checks, "database": told})
        return self._latest

    async def _checked(self) -> HealthView:
        try:
            self._latest = await anyio.to_thread.run_sync(self._check, abandon_on_cancel=True, limiter=self._limiter)
            return self._latest
        finally:
            self._running = None
