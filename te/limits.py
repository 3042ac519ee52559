"""The bounds of a workload. They keep every later stage (index arithmetic in 64 bits, recursion, counters in the
database) inside what it can represent, and a hostile description small."""

MAX_RANK = 8
"""Dimensions of a tensor, and reduction axes of a stage."""

MAX_EXTENT = (1 << 31) - 1
MAX_ELEMENTS = 1 << 40
"""Elements of one tensor stay below this."""

MAX_POINTS = 1 << 48
"""Points of one stage's axes and reduction axes stay below this."""

MAX_TENSORS = 256
"""Inputs, and stages."""

MAX_NODES = 4096
"""Expression nodes of one stage."""

MAX_DEPTH = 100
"""Nodes from the root of an expression to a leaf: everything that walks expressions recurses this deep."""

MAX_COEFFICIENT = (1 << 31) - 1
"""Absolute value of the coefficients and the constant of an affine index."""

MAX_CONSTRAINTS = 32
"""Affine conditions of enclosing selects that are kept when an index is checked; more are disregarded."""

NAME_PATTERN = "^[A-Za-z_][A-Za-z0-9_]{0,63}$"
"""What a tensor or an axis may be called; ``$`` is the very end (names hold no line break)."""
