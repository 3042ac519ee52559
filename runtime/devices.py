"""The devices of this machine, by the kind of target that is compiled for them."""

from collections.abc import Callable

from ..core.errors import UnsupportedTarget
from ..core.target import DeviceInfo, Target
from . import hardware
from .cpu import CpuDevice
from .device import Device

DEVICES: dict[str, tuple[Callable[[], Target], Callable[[Target | None], Device]]] = {
    "llvm": (hardware.host_target, CpuDevice),
}
"""Target kind -> (the target of this machine, how its device is opened)."""


def host_target(kind: str = "llvm") -> Target:
    """What to compile for to use this machine's device of ``kind``. Raises UnsupportedTarget."""
    return _row(kind)[0]()


def open_device(kind: str = "llvm", target: Target | None = None) -> Device:
    """The device of ``kind``, seen as ``target`` (default: all of it). Raises UnsupportedTarget."""
    return _row(kind)[1](target)


def device_infos() -> tuple[DeviceInfo, ...]:
    """What devices this machine has that can be used now."""
    infos = []
    for kind in DEVICES:
        try:
            infos.append(open_device(kind).info)
        except UnsupportedTarget:
            continue
    return tuple(infos)


def _row(kind: str) -> tuple[Callable[[], Target], Callable[[Target | None], Device]]:
    if kind not in DEVICES:
        raise UnsupportedTarget(f"no device of kind {kind!r}; known: {', '.join(DEVICES)}", field="target")
    return DEVICES[kind]
