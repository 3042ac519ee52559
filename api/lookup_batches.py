"""Gathers look-ups that arrive at the same time into one statement of the database.

While a statement is under way, look-ups wait for the next one. So a busy service asks the database rarely, whatever
the number of its clients, and nothing waits on the event loop. Answers are kept for a database that does not answer:
after ``PATIENCE_SECONDS`` the last known one is given, with its age.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import anyio.to_thread

from ..core.errors import StoreError
from ..service.lookup import Answer, Conditions, Miss
from .limits import MAX_LOOKUP_KEYS

Found = Answer | Miss
Aged = tuple[Found, float]
"""An answer, and for how many seconds it has been known. It is 0 where the database has just said so."""
LookUp = Callable[[Sequence[str], Conditions], list[Found]]
PATIENCE_SECONDS = 0.03
MOST_KEPT = 16_384
MOST_AGE_SECONDS = 3600.0
"""Older answers are not given."""
_THREADS = 8


class LookupBatches:
    """Belongs to one event loop. ``look_up`` runs in a thread, once at a time for each set of conditions."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._waiting: dict[Conditions, list[tuple[str, asyncio.Future[Aged]]]] = {}
        self._running: dict[Conditions, asyncio.Task[None]] = {}
        self._silent: set[Conditions] = set()
        self._kept: OrderedDict[tuple[str, Conditions], tuple[Found, float]] = OrderedDict()
        self._limiter = anyio.CapacityLimiter(_THREADS)

    async def find(self, workload_key: str, wanted: Conditions) -> Aged:
        """Return the answer for one workload. Raises what ``look_up`` raises."""
        if wanted in self._silent and (kept := self._known(workload_key, wanted)) is not None:
            return kept
        future: asyncio.Future[Aged] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(wanted, []).append((workload_key, future))
        if wanted not in self._running:
            self._running[wanted] = asyncio.create_task(self._run(wanted))
        return await future

    async def _run(self, wanted: Conditions) -> None:
        try:
            while waiting := self._waiting.pop(wanted, None):
                batch, later = waiting[:MAX_LOOKUP_KEYS], waiting[MAX_LOOKUP_KEYS:]
                if later:
                    self._waiting[wanted] = later
                await self._answer(batch, wanted)
        finally:
            del self._running[wanted]

    async def _answer(self, batch: Sequence[tuple[str, asyncio.Future[Aged]]], wanted: Conditions) -> None:
        keys = list(dict.fromkeys(key for key, _ in batch))
        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._fall_back, batch, wanted)
        try:
            call = partial(self._look_up, keys, wanted)
            answers = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
            found = dict(zip(keys, answers, strict=True))
        except Exception as error:
            if isinstance(error, StoreError):
                self._give_known(batch, wanted)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        finally:
            timer.cancel()
            self._silent.discard(wanted)
        now = time.monotonic()
        for key, future in batch:
            self._keep(key, wanted, found[key], now)
            if not future.done():  # its client may have gone
                future.set_result((found[key], 0.0))

    def _fall_back(self, batch: Sequence[tuple[str, asyncio.Future[Aged]]], wanted: Conditions) -> None:
        """The database is silent: give those who wait what is known, and those who come until it answers."""
        self._silent.add(wanted)
        self._give_known([*batch, *self._waiting.get(wanted, ())], wanted)

    def _give_known(self, batch: Sequence[tuple[str, asyncio.Future[Aged]]], wanted: Conditions) -> None:
        for key, future in batch:
            if not future.done() and (kept := self._known(key, wanted)) is not None:
                future.set_result(kept)

    def _known(self, key: str, wanted: Conditions) -> Aged | None:
        kept = self._kept.get((key, wanted))
        age = 0.0 if kept is None else time.monotonic() - kept[1]
        return None if kept is None or age > MOST_AGE_SECONDS else (kept[0], age)

    def _keep(self, key: str, wanted: Conditions, found: Found, now: float) -> None:
        self._kept[key, wanted] = (found, now)
        self._kept.move_to_end((key, wanted))
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
