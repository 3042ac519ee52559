"""The strategies there are: name -> strategy."""

from collections.abc import Callable
from dataclasses import replace

from ..strategy import Problem, Strategy
from ..with_history import with_history
from .annealing import Annealing
from .evolution import Evolution
from .exhaustive import Exhaustive
from .gaussian import GaussianSearch
from .model import ModelSearch
from .portfolio import Portfolio
from .random import RandomSearch
from .tpe import TreeParzen
from .warm import WarmSearch


def _warm(problem: Problem) -> Strategy:
    return WarmSearch(problem, ModelSearch(replace(problem, history=())))


def _portfolio(problem: Problem) -> Strategy:
    members = (ModelSearch(problem), Evolution(problem), Annealing(problem))
    return Portfolio(problem, members)


STRATEGIES: dict[str, Callable[[Problem], Strategy]] = {
    "random": with_history(RandomSearch),
    "exhaustive": with_history(Exhaustive),
    "evolution": with_history(Evolution),
    "annealing": with_history(Annealing),
    "model": ModelSearch,
    "warm": _warm,
    "portfolio": with_history(_portfolio),
    "tpe": with_history(TreeParzen),
    "gaussian": with_history(GaussianSearch),
}
"""Name -> strategy for a problem. ``tpe`` and ``gaussian`` are other systems' ways, to compare with."""
