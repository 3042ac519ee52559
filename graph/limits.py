"""The bounds of a graph. They keep a hostile description small; those of ``te.limits`` hold for each kernel of it."""

MAX_VALUES = 1 << 16
"""The largest number of inputs, of constants, of nodes, and of outputs."""

MAX_OPERANDS = 1024
"""The largest number of operands, and of results, of a node."""

MAX_ATTRIBUTE_ITEMS = 4096
"""How many values the attributes of one node may hold in all."""

MAX_ATTRIBUTE_DEPTH = 8
"""How deep lists and objects may be nested in attributes."""

MAX_TEXT = 1024
"""The longest text among attributes, in characters."""
