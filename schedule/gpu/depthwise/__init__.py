"""Depthwise convolutions with channels last on matrix units (sketch ``cuda_depthwise``).

A ``problems.depthwise.Depthwise`` comes in. ``space`` says which settings are legal, which are promising and how long
they may take; ``sizes`` what follows from them; ``kernel`` writes the launch of one setting.
"""
