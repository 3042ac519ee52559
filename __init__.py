"""Tilewright: schedule search for tensor kernels.

The repository root is this package: ``search/`` imports as ``tilewright.search`` (see README, "Layout").
"""

__version__ = "0.1.0"
