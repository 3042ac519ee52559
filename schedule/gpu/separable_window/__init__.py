"""Windows of planes, such as pooling with channels first, reduced along columns and then along rows (sketch
``cuda_separable_window``).

A ``problems.separable_window.SeparableWindow`` comes in. ``space`` says which settings are legal, which are promising
and how long they may take; ``kernel`` writes the launch of one setting.
"""
