"""Limits of processors and the blocks they hold, against figures of the occupancy calculator."""

import numpy as np
import pytest

from tilewright.core.errors import UnsupportedTarget
from tilewright.core.target import Target
from tilewright.schedule.gpu.occupancy import limits_of


def _target(arch: str, kind: str = "cuda") -> Target:
    return Target(kind, arch, (), 132, 16)


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared_bytes", "blocks"),
    [
        ("sm_90a", 256, 32, 0, 8),  # threads
        ("sm_90a", 256, 33, 0, 6),  # 40 registers once rounded up
        ("sm_90a", 128, 255, 0, 2),
        ("sm_90a", 32, 16, 0, 32),  # blocks
        ("sm_90a", 64, 112, 0, 8),  # 18 warps would fit, but no five in a quarter
        ("sm_90a", 416, 152, 0, 0),
        ("sm_90a", 128, 32, 48 * 1024, 4),  # shared memory, 1 KiB a block for the system
        ("sm_90a", 128, 32, 227 * 1024, 1),
        ("sm_90a", 128, 32, 227 * 1024 + 1, 0),
        ("sm_90a", 1024, 65, 0, 0),
        ("sm_89", 512, 40, 0, 3),
        ("sm_80", 1024, 64, 100 * 1024, 1),
        ("gfx942", 256, 128, 0, 4),
        ("gfx942", 64, 16, 4096, 16),
        ("gfx942", 256, 32, 64 * 1024, 1),
        ("gfx950", 256, 32, 64 * 1024, 2),
    ],
)
def test_resident_blocks(arch: str, threads: int, registers: int, shared_bytes: int, blocks: int) -> None:
    assert (
        limits_of(_target(arch, "amdgpu" if arch.startswith("gfx") else "cuda")).resident_blocks(
            threads, registers, shared_bytes
        )
        == blocks
    )


def test_columns_at_once() -> None:
    limits = limits_of(_target("sm_90a"))
    threads = np.array([128, 256, 512])
    resident = limits.resident_blocks(threads, np.full(3, 64), 0)
    assert resident.tolist() == [8, 4, 2]
    assert limits.waves(np.array([132 * 8, 132 * 2, 1]), resident, 132).tolist() == [1.0, 0.5, 1 / 264]


def test_unknown_architectures_are_named() -> None:
    for target in (_target("sm_75"), _target("x86-64", "llvm"), _target("gfx942")):
        with pytest.raises(UnsupportedTarget, match="sm_90a") as caught:
            limits_of(target)
        assert target.arch in caught.value.message
