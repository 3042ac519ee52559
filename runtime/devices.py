"""The devices of this machine, by the kind of target that is compiled for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from ..core.errors import UnsupportedTarget
from ..core.lazy_table import LazyTable
from ..core.target import DeviceInfo, Target
from .device import Device

_CLASSES = {"llvm": "cpu:CpuDevice", "cuda": "cuda.device:CudaDevice"}
"""Kind of target -> ``module:class`` in this folder. Named rather than imported: a process loads those that it uses."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """The devices of one kind; ordinals from 0 on tell them apart. ``count`` returns how many there are here.
    ``info`` describes one without opening it; its target is the whole device. ``uuid`` names one for good, whatever
    else is plugged in or hidden. ``open`` opens one as a target; None means all of it. All three raise
    UnsupportedTarget."""

    count: Callable[[], int]
    info: Callable[[int], DeviceInfo]
    uuid: Callable[[int], str]
    open: Callable[[Target | None, int], Device]


def _load(kind: str) -> DeviceKind:
    name, opened = _CLASSES[kind].split(":")
    module = import_module(f".{name}", __package__)
    return DeviceKind(module.count, module.info, module.uuid, getattr(module, opened))


DEVICES: Mapping[str, DeviceKind] = LazyTable(_CLASSES, _load)
"""This maps the kind of a target to its devices."""


def host_target(kind: str = "llvm", ordinal: int = 0) -> Target:
    """Return the target to compile for, to use a device of ``kind`` of this machine. Raises UnsupportedTarget."""
    return device_info(kind, ordinal).target


def device_info(kind: str = "llvm", ordinal: int = 0) -> DeviceInfo:
    """Describe a device of ``kind`` of this machine without opening it. Raises UnsupportedTarget."""
    return _row(kind).info(ordinal)


def device_uuid(kind: str = "llvm", ordinal: int = 0) -> str:
    """Return the name of a device of ``kind`` that no other device has, here or elsewhere. Raises UnsupportedTarget."""
    return _row(kind).uuid(ordinal)


def open_device(kind: str = "llvm", target: Target | None = None, ordinal: int = 0) -> Device:
    """Open a device of ``kind`` as ``target`` (default: all of it). Raises UnsupportedTarget."""
    return _row(kind).open(target, ordinal)


def device_infos() -> tuple[DeviceInfo, ...]:
    """Describe the devices of this machine, in the order of kinds and ordinals. None is opened."""
    infos = []
    for kind in DEVICES.values():
        for ordinal in range(kind.count()):
            try:
                infos.append(kind.info(ordinal))
            except UnsupportedTarget:  # Nothing can be compiled for it.
                continue
    return tuple(infos)


def _row(kind: str) -> DeviceKind:
    if kind not in DEVICES:
        raise UnsupportedTarget(f"no device of kind {kind!r}; known: {', '.join(DEVICES)}", field="target")
    return DEVICES[kind]
