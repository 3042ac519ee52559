"""Tests marked ``cuda`` need an NVIDIA device; they are skipped, with the reason, where there is none."""

from functools import cache

import pytest

from tilewright.core.errors import UnsupportedTarget
from tilewright.runtime.devices import host_target


@cache
def _missing(kind: str) -> str | None:
    """Why this machine has no device of ``kind``; None where it has one."""
    try:
        host_target(kind)
    except UnsupportedTarget as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None:
        reason = _missing("cuda")
        if reason is not None:
            pytest.skip(reason)
