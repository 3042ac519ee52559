"""Thread tiles: every thread computes a tile of outputs, and loads what these read once (sketch ``cuda_thread_tile``).

A ``problems.pointwise.Pointwise`` with loads in another order than its outputs comes in: pixels with interleaved
channels, sums over small windows, gathers at places that are computed, small products. ``loads`` says what a tile
loads; ``space`` which settings are legal, which are promising and how long they may take; ``kernel`` writes the launch
of one setting.
"""
