"""Windows of planes whose points have weights, such as depthwise convolution with channels first (sketch
``cuda_plane_window``).

A ``problems.plane_window.PlaneWindow`` comes in. ``space`` says which settings are legal, which are promising and how
long they may take; ``kernel`` writes the launch of one setting.
"""
