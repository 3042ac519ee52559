"""Which units there are, and how they are."""

import socket

from ..core.errors import UnsupportedTarget
from ..core.fleet import Unit
from ..runtime.devices import DEVICES, device_info, device_uuid


def local_unit(kind: str = "llvm", ordinal: int = 0) -> Unit:
    """The ``ordinal``-th device of ``kind`` of this host. Raises UnsupportedTarget."""
    return Unit(device_uuid(kind, ordinal), device_info(kind, ordinal), socket.gethostname(), ordinal=ordinal)


def local_units() -> tuple[Unit, ...]:
    """The devices of this host that code can be made for, in the order of kinds and ordinals. None is opened."""
    units = []
    for kind, row in DEVICES.items():
        for ordinal in range(row.count()):
            try:
                units.append(local_unit(kind, ordinal))
            except UnsupportedTarget:
                continue
    return tuple(units)
