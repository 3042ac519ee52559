"""Multilayer perceptrons in one launch: products with statistics of their rows, layer after layer (``cuda_mlp``).

What comes in is an ``Mlp`` (``schedule.problems.mlp``) and a setting of the knobs; what goes out is a kernel. ``space``
has the knobs, the constraints and the rules of thumb; ``prior`` the estimated time; ``sizes`` the record of what
follows from a setting; ``kernel`` writes it. The tiles in shared memory are those of ``skinny.mma_tiles``.
"""
