"""The look-ups of the Python client.

A client asks for what fits its own machine: where a call names no device, toolchain or profile, those of the device
``target`` of the machine that the client runs on are sent. A machine without such a device sends nothing, and the
service's own machine is meant.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidParameter, TilewrightError
from ..te.json import workload_to_json
from ..te.workload import Workload
from .lookup_cache import CachedAnswer, LookupCache
from .request_flow import RequestFlow, call, parsed, request
from .requests import ExpressionIn
from .responses import BatchOut, BestOut

if TYPE_CHECKING:
    from ..service.identity import LocalIdentity

Task = ExpressionIn | Workload


@lru_cache(maxsize=16)
def own_identity(target: str) -> "LocalIdentity | None":
    """Return what this machine is for look-ups; None where it has no such device."""
    from ..service.identity import who_am_i  # it loads the code generators

    try:
        return who_am_i(target)
    except TilewrightError:
        return None


def conditions_of(
    device_key: str | None, toolchain_key: str | None, profile: str | None, target: str | None, relax: Iterable[str]
) -> dict[str, Any]:
    """Return the conditions to send, with the parts of this machine where none are given."""
    parts: dict[str, Any] = {"device_key": device_key, "toolchain_key": toolchain_key, "profile": profile}
    chosen = sorted(set(relax))
    own = own_identity(target or "llvm") if None in parts.values() else None
    if own is not None and own.code is not None:
        if device_key in (None, own.device_key) and "device" in chosen:
            target = ":".join(own.code)  # the service may not know the device
        elif device_key in (None, own.device_key):
            target = None
        mine = {"device_key": own.device_key, "toolchain_key": own.toolchain_key, "profile": own.profile}
        parts = {name: mine[name] if value is None else value for name, value in parts.items()}
    parts["target"] = target
    given = {name: value for name, value in parts.items() if value is not None}
    return {**given, "relax": chosen} if chosen else given


class LookupMethods:
    """Describes the methods of a client that look schedules up."""

    address: str
    cache: LookupCache

    @call
    def best(
        self,
        workload_key: str,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        target: str | None = None,
        relax: Iterable[str] = (),
    ) -> RequestFlow[BestOut]:
        """Return the best schedule known for a workload key. ``relax`` names what may give way where nothing fits
        exactly: ``profile``, ``toolchain``, ``device``. Raises Missing when there is none."""
        asked = conditions_of(device_key, toolchain_key, profile, target, relax)
        if "relax" in asked:
            asked["relax"] = ",".join(asked["relax"])
        query = {"workload_key": workload_key, **asked}
        text = yield from self._asked("GET", "/v1/schedules/best", query)
        return BestOut.model_validate_json(text)

    @call
    def best_of_many(
        self,
        workload_keys: Sequence[str],
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        target: str | None = None,
        relax: Iterable[str] = (),
    ) -> RequestFlow[list[BestOut | None]]:
        """Return the best schedules of many workloads, as ``best`` does for one; None where there is none."""
        asked = conditions_of(device_key, toolchain_key, profile, target, relax)
        found: list[BestOut | None] = []
        for first in range(0, len(workload_keys), MOST_KEYS):
            body = {"workload_keys": list(workload_keys[first : first + MOST_KEYS]), **asked}
            text = yield from self._asked("POST", "/v1/schedules/batch_lookup", body)
            found += BatchOut.model_validate_json(text).answers
        return found

    @call
    def lookup(
        self,
        task: Task,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        target: str | None = None,
        relax: Iterable[str] = (),
    ) -> RequestFlow[BestOut]:
        """Return the best schedule known for an expression. Raises Missing that names the nearest workloads when there
        is none."""
        body = expression_body(task) | conditions_of(device_key, toolchain_key, profile, target, relax)
        return parsed(BestOut, (yield request("POST", "/v1/schedules/lookup", json=body)))

    def _asked(self, method: str, path: str, asked: dict[str, Any]) -> RequestFlow[str]:
        """Ask, or take the answer that the cache has where the service says that it is the same."""
        key = LookupCache.key(self.address, path, asked)
        known = self.cache.find(key)
        headers = {} if known is None else {"If-None-Match": known.etag}
        options: dict[str, Any] = {"params": asked} if method == "GET" else {"json": asked}
        answer = yield request(method, path, headers=headers, **options)
        if answer.status_code == 304 and known is not None:
            return known.body
        etag = answer.headers.get("etag")
        if etag is not None:
            self.cache.keep(key, CachedAnswer(etag, answer.text))
        return answer.text


MOST_KEYS = 1_000
"""How many keys are sent at once."""


def expression_body(task: Task) -> dict[str, Any]:
    """Return an expression as it is sent."""
    if isinstance(task, Workload):
        return {"workload": workload_to_json(task)}
    if not isinstance(task, ExpressionIn):
        kind = type(task).__name__
        raise InvalidParameter(
            f"task of type {kind}; allowed: operator_task(...), ExpressionIn, Workload", field="task"
        )
    return task.model_dump(exclude_none=True)
