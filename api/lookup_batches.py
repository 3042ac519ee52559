"""Gathers look-ups that arrive at the same time into one statement of the database.

While a statement is under way, look-ups wait for the next one. So a busy service asks the database rarely, whatever
the number of its clients, and nothing waits on the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence

from ..service.lookup import Answer, Conditions, Miss
from .limits import MAX_LOOKUP_KEYS

Found = Answer | Miss
LookUp = Callable[[Sequence[str], Conditions], list[Found]]


class LookupBatches:
    """Belongs to one event loop. ``look_up`` runs in a thread, once at a time for each set of conditions."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._waiting: dict[Conditions, list[tuple[str, asyncio.Future[Found]]]] = {}
        self._running: dict[Conditions, asyncio.Task[None]] = {}

    async def find(self, workload_key: str, wanted: Conditions) -> Found:
        """Return the answer for one workload. Raises what ``look_up`` raises."""
        future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
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

    async def _answer(self, batch: Sequence[tuple[str, asyncio.Future[Found]]], wanted: Conditions) -> None:
        keys = list(dict.fromkeys(key for key, _ in batch))
        try:
            found = dict(zip(keys, await asyncio.to_thread(self._look_up, keys, wanted), strict=True))
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for key, future in batch:
            if not future.done():  # its client may have gone
                future.set_result(found[key])
