"""The operator library. A new operator is one file here and one line in this table; the contract suite
``tests/contracts/test_operators.py`` then runs it by itself, from its schema alone."""

from .matmul import MATMUL
from .operator import Operator
from .softmax import SOFTMAX

OPERATORS: dict[str, Operator] = {
    o.name: o
    for o in (
        MATMUL,
        SOFTMAX,
    )
}
