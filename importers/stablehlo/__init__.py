"""StableHLO modules, as JAX and XLA exchange them, as graphs. ``model`` walks a module, ``foreign`` runs what has no
rule by XLA; only these two import jax. Each of the other files has rules, in the table ``RULES``.

A rule is given a ``HloCall``, and returns a value or a list of them.
"""

from . import elementwise, layers, places, shapes
from .call import RULES, HloCall

__all__ = ["RULES", "HloCall", "elementwise", "layers", "places", "shapes"]
