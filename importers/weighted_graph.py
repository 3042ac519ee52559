"""What reading a model file gives."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import TilewrightError
from ..graph.graph import Graph
from ..graph.operators.operator import Array


class UnsupportedModel(TilewrightError):
    """A model with operators, dtypes or shapes that graphs do not have. The message lists them."""

    code = "UNSUPPORTED_MODEL"


@dataclass(frozen=True)
class WeightedGraph:
    """A graph, and the data of its constants by name. ``inputs`` and ``outputs`` map the names of the model to values
    of the graph, in order."""

    graph: Graph
    weights: Mapping[str, Array]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
