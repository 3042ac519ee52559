"""Small windows over neighbouring pixels: pooling and depthwise convolution (sketch ``cuda_window``).

A ``problems.window.ReduceWindow`` comes in. ``space`` says which settings are legal, which are promising and how long
they may take; ``kernel`` writes the launch of one setting.
"""
