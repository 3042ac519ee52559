"""Gradients of depthwise convolutions towards their filters (sketch ``cuda_depthwise_wgrad``).

A ``problems.depthwise_gradient.DepthwiseGradient`` comes in. ``space`` says which settings are legal, which are
promising and how long they may take; ``tiles`` writes what a thread computes of a tile of pixels; ``kernel`` writes the
launches of one setting.
"""
