"""Windows that move along rows, such as 1-D pooling with channels first (sketch ``cuda_row_window``).

A ``problems.row_window.RowWindow`` comes in. ``space`` says which settings are legal, which are promising and how long
they may take; ``kernel`` writes the launch of one setting.
"""
