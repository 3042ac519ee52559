"""The strategies there are: name -> strategy."""

from collections.abc import Callable

from ..strategy import Problem, Strategy
from .evolution import Evolution
from .model import ModelSearch
from .random import RandomSearch

STRATEGIES: dict[str, Callable[[Problem], Strategy]] = {
    "random": RandomSearch,
    "evolution": Evolution,
    "model": ModelSearch,
}
"""Name -> strategy for a problem."""
