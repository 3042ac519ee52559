"""Permuting copies such as transposes, by tiles in shared memory (sketch ``cuda_permute``).

A ``problems.permute.Permute`` comes in. ``space`` says which settings are legal, which are promising and how long they
may take; ``kernel`` writes the launch of one setting.
"""
