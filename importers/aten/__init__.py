"""How operators of ATen become nodes of a graph: one function for each, by the operator's name.

A rule is given a ``Emitter`` and the arguments of a call, in which values stand for tensors, and returns a value, or a
list of them. It raises ``NoRule`` where it does not cover the arguments: the call then stays foreign. Rules do not
import torch. ``rule`` has what they share; each of the other files puts its rules into the table ``RULES``.
"""

from . import compound, norms, pointwise, pools, products, quantised, ranks, recurrent, reductions, selection, views
from .rule import RULES, Emitter, NoRule

__all__ = [
    "RULES", "Emitter", "NoRule", "compound", "norms", "pointwise", "pools", "products", "quantised", "ranks",
    "recurrent", "reductions", "selection", "views",
]  # fmt: skip
