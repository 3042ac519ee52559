"""The cost models there are."""

from collections.abc import Callable
from importlib import import_module

from ..core.errors import InvalidParameter
from .model import CostModel

MODELS: dict[str, str] = {
    "xgboost": "xgboost:XGBoostModel",
    "forest": "forest:ForestModel",
    "constant": "constant:ConstantModel",
}
"""Name -> ``module:class`` in this folder. Named rather than imported: the learning libraries take half a second to
load, which a look-up should not pay for."""


def new_model(name: str) -> CostModel:
    """Return a model that has learned nothing yet. Raises InvalidParameter for an unknown name."""
    if name not in MODELS:
        raise InvalidParameter(f"no cost model {name!r}; allowed: {', '.join(MODELS)}", field="model")
    module, factory = MODELS[name].split(":")
    make: Callable[[], CostModel] = getattr(import_module(f".{module}", __package__), factory)
    return make()
