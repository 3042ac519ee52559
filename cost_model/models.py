"""The cost models there are."""

from collections.abc import Callable

from .constant import ConstantModel
from .forest import ForestModel
from .model import CostModel
from .xgboost import XGBoostModel

MODELS: dict[str, Callable[[], CostModel]] = {
    "xgboost": XGBoostModel,
    "forest": ForestModel,
    "constant": ConstantModel,
}
"""Name -> a new, unlearned model."""
