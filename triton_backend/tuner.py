"""The autotuner: Triton's own, with a look at the service before anything is measured."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triton.runtime.autotuner import Autotuner, Config

from ..core.errors import InvalidParameter, InvalidWorkload, TilewrightError
from .call import CallTraits, KernelFunction, call_workload
from .service import KernelService
from .source import UnsupportedKernel

MEANWHILE = ("autotune", "first")
RETRY_SECONDS = 60.0
"""A service that did not answer is asked again after so long."""

log = logging.getLogger("tilewright")


@dataclass(frozen=True)
class AutotuneOptions:
    """What ``autotune`` takes beyond Triton's arguments; it says what they mean."""

    service: str | None = None
    target: str | None = None
    submit: bool = True
    meanwhile: str = "autotune"
    writes: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.meanwhile not in MEANWHILE:
            raise InvalidParameter(f"meanwhile {self.meanwhile!r}; allowed: {', '.join(MEANWHILE)}", field="meanwhile")


class AskingCache(dict[Any, Config]):
    """Triton's configurations by key. ``ask`` is called for a key that is missing, and may put it in."""

    def __init__(self, ask: Callable[[Any], None]) -> None:
        super().__init__()
        self._ask = ask

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key):
            self._ask(key)
        return super().__contains__(key)


class ServiceAutotuner(Autotuner):  # type: ignore[misc]
    """``triton.runtime.autotuner.Autotuner`` that asks a service where its cache has no configuration for a key. All
    else is Triton's."""

    def __init__(
        self, fn: Any, arg_names: Any, configs: Any, key: Any, *more: Any, options: AutotuneOptions, **named: Any
    ) -> None:
        super().__init__(fn, arg_names, list(configs), list(key), *more, **named)
        self.cache = AskingCache(self._ask)
        self._options = options
        self._call: tuple[Sequence[Any], Mapping[str, Any]] = (), {}
        self._service: KernelService | None = None
        self._kernel: KernelFunction | None = None
        self._said: set[str] = set()
        self._silent_until = 0.0
        self._asked: set[Any] = set()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._call = args, kwargs
        return super().run(*args, **kwargs)

    def _ask(self, key: Any) -> None:
        """Put the service's configuration for the call in hand into the cache, or have it found there."""
        if key in self._asked or time.monotonic() < self._silent_until:
            return
        self._asked.add(key)
        try:
            service = self._connected()
            if service is None:
                return
            args, kwargs = self._call
            named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
            grid = named.pop("grid")
            named.pop("warmup", None)
            kernel, configs = self._kernel_function(), list(self.prune_configs(dict(kwargs)))
            workload = call_workload(kernel, self._traits(), configs, named, grid)
            found = service.find(workload)
            if found is not None:
                self.cache[key] = configs[found]
            elif self._options.submit:
                service.tune(workload, lambda number: self.cache.__setitem__(key, configs[number]))
                if self._options.meanwhile == "first":
                    self.cache.setdefault(key, configs[0])
        except InvalidWorkload as error:
            self._say(f"is not sent to the service: {error.message}")
        except TilewrightError as error:
            self._asked.discard(key)
            self._silent_until = time.monotonic() + RETRY_SECONDS
            self._say(f"has no configuration from {self._address()}: {error.message}")

    def _connected(self) -> KernelService | None:
        if self._service is None:
            address = self._address()
            if not address:
                self._say("has no service: neither the argument service nor TILEWRIGHT_URL is set")
                self._silent_until = float("inf")
                return None
            self._service = KernelService(address, self._options.target)
        return self._service

    def _address(self) -> str:
        from ..service.settings import Settings  # it reads the environment

        return self._options.service or Settings().url or ""

    def _kernel_function(self) -> KernelFunction:
        """Raises UnsupportedKernel."""
        if self.user_defined_pre_hook or self.user_defined_post_hook:
            raise UnsupportedKernel("pre_hook and post_hook are code of this process; reset_to_zero can be sent")
        if self._kernel is None:
            self._kernel = KernelFunction.of(self.fn, (*self._options.writes, *self.reset_to_zero, *self.restore_value))
        return self._kernel

    def _traits(self) -> CallTraits:
        return CallTraits(tuple(self.keys), frozenset(self.reset_to_zero), self._options.ranges)

    def _say(self, what: str) -> None:
        """Tell the log, once."""
        if what not in self._said:
            self._said.add(what)
            log.warning("%s %s; Triton's own autotuning is used", self.base_fn.__name__, what)
