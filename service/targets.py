"""Parses the names that people give targets.

A job names a class of devices: a kind (``llvm``, ``cuda``), a kind with its architecture (``cuda:sm_90a``), or the key
of a device. Whichever unit of the class is free takes its tasks. ``cuda:1`` names one device of this machine, which has
a meaning only where the database is embedded.

For code alone, ``llvm`` and ``cuda`` name the first device of that kind, and ``cuda:1`` another one of this machine.
``cuda:sm_90a`` names an architecture that code can be made for without such a device. So does ``llvm:aarch64+sve``, a
processor with its extensions (``codegen.llvm.architectures``), and ``amdgpu:gfx942`` or ``amdgpu:gfx950``, which
nothing is timed on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..codegen.backends import BACKENDS, backend_for
from ..codegen.llvm.architectures import target_named
from ..core.errors import UnsupportedTarget
from ..core.record import MeasuredOn
from ..core.target import DeviceInfo, Profile, Target
from ..runtime.devices import DEVICES, device_infos
from ..workers.settings import HOST_KINDS

TARGETS: tuple[str, ...] = tuple(kind for kind in BACKENDS if kind in DEVICES)
"""Code can be compiled for, and timed on, devices of these target kinds."""

_MULTIPROCESSORS = {"sm_80": 108, "sm_89": 142, "sm_90a": 132, "sm_100a": 148, "gfx942": 304, "gfx950": 256}
"""Architecture -> how many multiprocessors its data-centre card has. Code that is made without a device assumes it."""


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """Names one of a machine's devices: the ``ordinal``-th of a kind."""

    kind: str
    ordinal: int = 0


def parse_device(text: str) -> DeviceSelector:
    """Parse the name of a device, such as ``cuda`` or ``cuda:1``. Raises UnsupportedTarget that says what is
    allowed."""
    kind, colon, rest = text.partition(":")
    if kind not in TARGETS or (colon and not (rest.isascii() and rest.isdecimal() and len(rest) < 4)):
        allowed = ", ".join(TARGETS)
        raise UnsupportedTarget(
            f"{text[:80]!r} cannot be timed here; allowed: {allowed}, with :1 and so on for a further device",
            field="target",
        )
    return DeviceSelector(kind, int(rest or 0))


def kind_of(target: str, known: Callable[[], Iterable[DeviceInfo]], *, one_host: bool) -> str:
    """Return the kind of the devices that a job's target names. ``known`` gives the devices of the database.
    ``one_host``: whether there is but one machine, so that numbers of devices mean something. Raises UnsupportedTarget
    that says what is allowed."""
    kind, colon, rest = target.partition(":")
    if kind in TARGETS and not colon:
        return kind
    if kind in TARGETS and rest.isdecimal():
        if one_host:
            return parse_device(target).kind
        raise UnsupportedTarget(
            f"{target[:80]!r} numbers the devices of one machine, and this service has many; allowed: a kind "
            f"({', '.join(TARGETS)}), a kind with its architecture ({kind}:ARCH), or the key of a device",
            field="target",
        )
    for info in known():
        if target in (info.key, f"{info.target.kind}:{info.target.arch}") and info.target.kind in TARGETS:
            return info.target.kind
    raise UnsupportedTarget(
        f"{target[:80]!r} cannot be timed here; allowed: {', '.join(TARGETS)}, with the architecture of a known device "
        f"({TARGETS[-1]}:ARCH), the key of a known device{', or with :1 for a further device' if one_host else ''}",
        field="target",
    )


def devices_of(target: str, known: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Return the devices that a job's target names, of those ``known`` and of this machine. Raises
    UnsupportedTarget."""
    _, colon, rest = target.partition(":")
    if colon and rest.isdecimal():
        return [measured_on(parse_device(target)).device]
    found = {info.key: info for info in (*known, *device_infos())}
    names = ("{0.target.kind}", "{0.target.kind}:{0.target.arch}", "{0.key}")
    return [info for info in found.values() if target in (name.format(info) for name in names)]


def check_present(target: str) -> None:
    """Raise UnsupportedTarget unless this machine has a device that a job's target names."""
    _, colon, rest = target.partition(":")
    if not colon or rest.isdecimal():
        measured_on(parse_device(target))
    elif not any(target in (i.key, f"{i.target.kind}:{i.target.arch}") for i in device_infos()):
        raise UnsupportedTarget(f"this machine has no device {target[:80]!r}", field="target")


def default_cache(kind: str) -> str:
    """Return the cache state that devices of a kind are timed with by default. The caches of a GPU are cold to most
    kernels."""
    return "warm" if kind in HOST_KINDS else "cold"


def profile_of(kind: str, cache: str) -> Profile:
    """Return how devices of a kind are timed. With protocol 2 the re-measurement on a GPU times every candidate on a
    hot and on a rested chip."""
    return Profile(cache, 1 if kind in HOST_KINDS else 2)


def measured_on(device: DeviceSelector, cache: str | None = None) -> MeasuredOn:
    """Return what a job for a device of this machine is measured on. Raises UnsupportedTarget."""
    present = [info for info in device_infos() if info.target.kind == device.kind]
    if device.ordinal >= len(present):
        if not present and device.kind in DEVICES:
            DEVICES[device.kind].info(0)  # this raises, and says why there is none
        raise UnsupportedTarget(
            f"this machine has {len(present)} devices for {device.kind!r}; {device.kind}:{device.ordinal} is none of "
            "them",
            field="target",
        )
    return usual(present[device.ordinal], cache)


def compiled_for(text: str, known: Iterable[DeviceInfo]) -> MeasuredOn:
    """Return the device and toolchain that code for a target is made for. ``KIND:ARCH`` takes a device of this machine,
    one of those ``known``, or a device of which only the name is known. Raises UnsupportedTarget."""
    kind, colon, arch = text.partition(":")
    if kind not in BACKENDS or (not colon and kind not in TARGETS):
        raise UnsupportedTarget(
            f"no code is made for {text[:80]!r}; allowed: {', '.join(TARGETS)}, or an architecture as in "
            "llvm:aarch64+sve, cuda:sm_90a, amdgpu:gfx942",
            field="target",
        )
    if not colon or arch.isdecimal():
        return measured_on(parse_device(text))
    for info in (*device_infos(), *known):
        if (info.target.kind, info.target.arch) == (kind, arch):
            return usual(info, None)
    target = target_named(arch) if kind in HOST_KINDS else Target(kind, arch, (), _MULTIPROCESSORS.get(arch, 1))
    return usual(DeviceInfo(str(target), target), None)


def named_code(text: str | None) -> tuple[str, str] | None:
    """Return the (kind, architecture) that a target of the form ``KIND:ARCH`` names; None for any other."""
    kind, colon, arch = (text or "").partition(":")
    return (kind, arch.partition("+")[0]) if colon and kind in BACKENDS and not arch.isdecimal() else None


def usual(info: DeviceInfo, cache: str | None) -> MeasuredOn:
    """Return what a job on a device is measured on, by this program with the compilers of this machine. Raises
    UnsupportedTarget where it cannot compile for the device."""
    profile = profile_of(info.target.kind, cache or default_cache(info.target.kind))
    return MeasuredOn(info, backend_for(info.target).toolchain(info.target), profile)
