"""The table of executors."""

from collections.abc import Callable
from importlib import import_module

from ..core.errors import InvalidParameter
from ..core.fleet import Unit
from ..core.target import Profile, Target
from .executor import Executor
from .settings import ExecutorSettings

EXECUTORS: dict[str, str] = {"local": "local:LocalExecutor", "ray": "ray:RayExecutor"}
"""Name -> ``module:class`` in this folder. Named rather than imported, because Ray is an optional, heavy install that
only those who ask for it should pay for. Each class is an Executor with the arguments of LocalExecutor."""


def open_executor(
    name: str,
    target: Target,
    *,
    profile: Profile | None = None,
    seed: int = 0,
    settings: ExecutorSettings | None = None,
    unit: Unit | None = None,
    fence: int = 0,
) -> Executor:
    """Start the executor called ``name`` for ``unit``, by default this host's first device of the target's kind; close
    it when done. ``fence`` is that of the lease on the unit, which the lock file of the device shows.

    Raises InvalidParameter for an unknown name or one whose optional dependency is not installed."""
    if name not in EXECUTORS:
        raise InvalidParameter(f"no executor {name!r}; allowed: {', '.join(EXECUTORS)}", field="executor")
    module, factory = EXECUTORS[name].split(":")
    try:
        make: Callable[..., Executor] = getattr(import_module(f".{module}", __package__), factory)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidParameter(
            f"the executor {name!r} is not installed; pip install 'tilewright[{name}]' brings it", field="executor"
        ) from error
    return make(target, profile=profile, seed=seed, settings=settings, unit=unit, fence=fence)
