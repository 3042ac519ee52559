"""ONNX models as graphs. ``model`` walks a model; each of the other files has rules, in the table ``RULES``.

Only ``model`` imports onnx. A rule is given a ``Call``, and returns a value or a list of them.
"""

from . import elementwise, layers, losses, quantised, recurrent, resize, sampling, shapes, transforms
from .call import RULES, Call

__all__ = [
    "RULES", "Call", "elementwise", "layers", "losses", "quantised", "recurrent", "resize", "sampling", "shapes",
    "transforms",
]  # fmt: skip
