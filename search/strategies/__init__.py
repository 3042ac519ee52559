"""The strategies there are: name -> strategy."""

from collections.abc import Callable
from dataclasses import replace

from ..strategy import Problem, Strategy
from .annealing import Annealing
from .evolution import Evolution
from .exhaustive import Exhaustive
from .model import ModelSearch
from .portfolio import Portfolio
from .random import RandomSearch
from .warm import WarmSearch


def _warm(problem: Problem) -> Strategy:
    return WarmSearch(problem, ModelSearch(replace(problem, history=())))


def _portfolio(problem: Problem) -> Strategy:
    members = {"model": ModelSearch(problem), "evolution": Evolution(problem), "annealing": Annealing(problem)}
    return Portfolio(problem, members)


STRATEGIES: dict[str, Callable[[Problem], Strategy]] = {
    "random": RandomSearch,
    "exhaustive": Exhaustive,
    "evolution": Evolution,
    "annealing": Annealing,
    "model": ModelSearch,
    "warm": _warm,
    "portfolio": _portfolio,
}
"""Name -> strategy for a problem."""
