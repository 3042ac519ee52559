"""The devices of this machine, for tests that run on every one that is present."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilewright.core.errors import UnsupportedTarget
from tilewright.runtime.device import Device
from tilewright.runtime.devices import DEVICES, open_device

_MARKS = {"cuda": [pytest.mark.cuda]}

PRESENT = [pytest.param(kind, marks=_MARKS.get(kind, [])) for kind in sorted(DEVICES)]
"""One parameter for each kind of device, marked with what it needs."""


@contextmanager
def opened(kind: str) -> Iterator[Device]:
    """The device of ``kind``; the test is skipped where this machine has none."""
    try:
        device = open_device(kind)
    except UnsupportedTarget as error:
        pytest.skip(str(error))
    yield device
