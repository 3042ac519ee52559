"""Derived columns of the CPU loop sketch: what a setting implies, in units that mean the same in every workload."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...core.target import Target
from ...te.workload import Workload
from ..space import Quantity
from .columns import Columns
from .fusion import Group

QUANTITIES = (Quantity("work", "operations", "plain operations of the tuned group"),)


def derive(workload: Workload, group: Group, target: Target, c: Columns) -> Mapping[str, NDArray[np.float32]]:
    return {"work": np.full(len(c), group.work, dtype=np.float32)}
