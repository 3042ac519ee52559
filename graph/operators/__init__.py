"""The table of operators of graphs. An operator takes the types of operands and attributes, and gives the type of the
result, its form in NumPy and its form in ``te``.

A new one is a file here, or an entry in the family that it belongs to, and one line in this table. The contract suite
``tests/contracts/test_graph_operators.py`` then runs it by itself.
"""

from .arithmetic import ARITHMETIC, COMPARISONS
from .constants import FULL, RANGE
from .functions import ACTIVATIONS, FUNCTIONS
from .gathers import GATHERS
from .joins import CONCATENATE, PAD, SPREAD
from .norms import BATCH_NORM, NORMS
from .operator import GraphOperator, Kind
from .pools import POOLS
from .products import CONVOLUTION, GROUPED_MATMUL, MATMUL
from .reductions import REDUCTIONS
from .scans import SCANS
from .scatters import SCATTER
from .special import SPECIAL
from .views import EXPAND, FLIP, IDENTITY, PERMUTE, REPEAT, RESHAPE, SLICE

OPERATORS: dict[str, GraphOperator] = {
    o.name: o
    for o in (
        IDENTITY,
        RESHAPE,
        PERMUTE,
        EXPAND,
        SLICE,
        FLIP,
        REPEAT,
        CONCATENATE,
        PAD,
        SPREAD,
        FULL,
        RANGE,
        *ARITHMETIC,
        *COMPARISONS,
        *FUNCTIONS,
        *ACTIVATIONS,
        *SPECIAL,
        *REDUCTIONS,
        *GATHERS,
        SCATTER,
        *SCANS,
        *NORMS,
        BATCH_NORM,
        *POOLS,
        MATMUL,
        GROUPED_MATMUL,
        CONVOLUTION,
    )
}

__all__ = ["OPERATORS", "GraphOperator", "Kind"]
