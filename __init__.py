"""Tilewright: schedule search for tensor kernels.

The repository root is this package: ``search/`` imports as ``tilewright.search`` (see README, "Layout").
"""

import sys

from tilewright import triton_backend as triton

__version__ = "0.1.0"

sys.modules[f"{__name__}.triton"] = triton
