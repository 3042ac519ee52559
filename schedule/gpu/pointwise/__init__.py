"""Pointwise kernels: every output element is computed from elements at the same place (sketch ``cuda_pointwise``).

A ``problems.pointwise.Pointwise`` comes in. ``space`` says which settings are legal, which are promising and how long
they may take; ``kernel`` writes the launch of one setting.
"""
