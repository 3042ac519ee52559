"""Windows that are long along one axis, such as filters of many taps and correlations (sketch ``cuda_long_window``).

A ``problems.long_window.LongWindow`` comes in. ``space`` says which settings are legal, which are promising and how
long they may take; ``kernel`` writes the launch of one setting.
"""
