"""The devices of this machine, by the kind of target that is compiled for them."""

from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import UnsupportedTarget
from ..core.target import DeviceInfo, Target
from . import cpu
from .cuda import device as cuda
from .device import Device


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices of one kind, told apart by an ordinal from 0 on. ``count``: how many there are here. ``info`` says what
    one is without opening it (its target is the whole device); ``open`` opens it, seen as a target (None: all of
    it). Both raise UnsupportedTarget."""

    count: Callable[[], int]
    info: Callable[[int], DeviceInfo]
    open: Callable[[Target | None, int], Device]


DEVICES: dict[str, DeviceKind] = {
    "llvm": DeviceKind(cpu.count, cpu.info, cpu.CpuDevice),
    "cuda": DeviceKind(cuda.count, cuda.info, cuda.CudaDevice),
}
"""Target kind -> its devices."""


def host_target(kind: str = "llvm", ordinal: int = 0) -> Target:
    """What to compile for to use a device of ``kind`` of this machine. Raises UnsupportedTarget."""
    return _row(kind).info(ordinal).target


def open_device(kind: str = "llvm", target: Target | None = None, ordinal: int = 0) -> Device:
    """A device of ``kind``, seen as ``target`` (default: all of it). Raises UnsupportedTarget."""
    return _row(kind).open(target, ordinal)


def device_infos() -> tuple[DeviceInfo, ...]:
    """What devices this machine has, in the order of kinds and ordinals; none is opened."""
    infos = []
    for kind in DEVICES.values():
        for ordinal in range(kind.count()):
            try:
                infos.append(kind.info(ordinal))
            except UnsupportedTarget:  # one that nothing can be compiled for
                continue
    return tuple(infos)


def _row(kind: str) -> DeviceKind:
    if kind not in DEVICES:
        raise UnsupportedTarget(f"no device of kind {kind!r}; known: {', '.join(DEVICES)}", field="target")
    return DEVICES[kind]
