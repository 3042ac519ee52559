"""Targets as people name them.

``llvm`` and ``cuda`` are the first device of that kind, ``cuda:1`` another one of this machine, and ``cuda:sm_90a`` an
architecture that code can be made for whether or not such a device is here. So is ``llvm:aarch64+sve``: a processor
with its extensions (``codegen.llvm.architectures``), and ``amdgpu:gfx942``, which nothing is timed on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..codegen.backends import BACKENDS, backend_for
from ..codegen.llvm.architectures import target_named
from ..core.errors import UnsupportedTarget
from ..core.record import MeasuredOn
from ..core.target import DeviceInfo, Profile, Target
from ..runtime.devices import DEVICES, device_infos
from ..workers.settings import HOST_KINDS

TARGETS: tuple[str, ...] = tuple(kind for kind in BACKENDS if kind in DEVICES)
"""Target kinds that can be both compiled for and timed on here."""

_MULTIPROCESSORS = {"sm_80": 108, "sm_89": 142, "sm_90a": 132, "sm_100a": 148, "gfx942": 304}
"""Architecture -> how many the data-centre card of it has, for code that is made without one."""


@dataclass(frozen=True, slots=True)
class Place:
    """One of a machine's devices: the ``ordinal``-th of a kind."""

    kind: str
    ordinal: int = 0


def place_named(text: str) -> Place:
    """``cuda``, ``cuda:1``. Raises UnsupportedTarget, which says what is allowed."""
    kind, colon, rest = text.partition(":")
    if kind not in TARGETS or (colon and not (rest.isascii() and rest.isdecimal() and len(rest) < 4)):
        allowed = ", ".join(TARGETS)
        raise UnsupportedTarget(
            f"{text[:80]!r} cannot be timed here; allowed: {allowed}, with :1 and so on for a further device",
            field="target",
        )
    return Place(kind, int(rest or 0))


def default_cache(kind: str) -> str:
    """What a profile asks for unless it is told: the caches of a graphics processor are cold to most kernels."""
    return "warm" if kind in HOST_KINDS else "cold"


def profile_of(kind: str, cache: str) -> Profile:
    """How devices of a kind are timed. Protocol 2 of graphics processors: finals are played hot and rested."""
    return Profile(cache, 1 if kind in HOST_KINDS else 2)


def measured_on(place: Place, cache: str | None = None) -> MeasuredOn:
    """What a job for a place of this machine is measured on. Raises UnsupportedTarget."""
    present = [info for info in device_infos() if info.target.kind == place.kind]
    if place.ordinal >= len(present):
        if not present and place.kind in DEVICES:
            DEVICES[place.kind].info(0)  # says why there is none
        raise UnsupportedTarget(
            f"this machine has {len(present)} devices for {place.kind!r}; {place.kind}:{place.ordinal} is none of them",
            field="target",
        )
    return _at(present[place.ordinal], cache)


def made_for(text: str, known: Iterable[DeviceInfo]) -> MeasuredOn:
    """What code for a target is made for: a device of this machine, or for ``KIND:ARCH`` that of this machine, one
    of those ``known``, or one that only has a name. Raises UnsupportedTarget."""
    kind, colon, arch = text.partition(":")
    if not colon or arch.isdecimal() or kind not in BACKENDS:
        return measured_on(place_named(text))
    for info in (*device_infos(), *known):
        if (info.target.kind, info.target.arch) == (kind, arch):
            return _at(info, None)
    target = target_named(arch) if kind in HOST_KINDS else Target(kind, arch, (), _MULTIPROCESSORS.get(arch, 1))
    return _at(DeviceInfo(str(target), target), None)


def _at(info: DeviceInfo, cache: str | None) -> MeasuredOn:
    profile = profile_of(info.target.kind, cache or default_cache(info.target.kind))
    return MeasuredOn(info, backend_for(info.target).toolchain(info.target), profile)
