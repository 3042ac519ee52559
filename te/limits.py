"""The bounds of a workload.

They keep every later stage inside what it can represent: index arithmetic in 64 bits, recursion, counters in the
database. They also keep a hostile description small.
"""

MAX_RANK = 8
"""The largest number of dimensions of a tensor, and of reduction axes of a stage."""

MAX_EXTENT = (1 << 31) - 1
MAX_ELEMENTS = 1 << 40
"""A tensor has fewer elements than this."""

MAX_POINTS = 1 << 48
"""The axes and reduction axes of a stage have fewer points than this."""

MAX_TENSORS = 256
"""The largest number of inputs, and of stages."""

MAX_NODES = 4096
"""The largest number of expression nodes of one stage."""

MAX_DEPTH = 100
"""The largest number of nodes from the root of an expression to a leaf. Whatever walks expressions recurses this deep.
"""

MAX_COEFFICIENT = (1 << 31) - 1
"""The largest absolute value of the coefficients and the constant of an affine index."""

MAX_CONSTRAINTS = 32
"""How many affine conditions of enclosing selects are kept when an index is checked. Further ones are disregarded."""

NAME_PATTERN = "^[A-Za-z_][A-Za-z0-9_]{0,63}$"
"""The names that a tensor or an axis may have. ``$`` is the very end, so that names hold no line break."""
