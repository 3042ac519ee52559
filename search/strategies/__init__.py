"""The table of strategies: name -> strategy. A ``SearchProblem`` comes in, and a ``Strategy`` that is asked for
candidates goes out.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from ..strategy import SearchProblem, Strategy

_CLASSES: dict[str, str] = {
    "random": "random:RandomSearch",
    "exhaustive": "exhaustive:Exhaustive",
    "evolution": "evolution:Evolution",
    "annealing": "annealing:Annealing",
    "model": "model:ModelSearch",
    "tpe": "tpe:TreeParzen",
    "gaussian": "gaussian:GaussianSearch",
}
"""Name -> ``module:class`` in this folder. Named rather than imported: the learning libraries take half a second to
load, which a look-up should not pay for."""


def _made(name: str, problem: SearchProblem) -> Strategy:
    module, factory = _CLASSES[name].split(":")
    make: Callable[[SearchProblem], Strategy] = getattr(import_module(f".{module}", __package__), factory)
    return make(problem)


def _begun(name: str) -> Callable[[SearchProblem], Strategy]:
    """What itself knows nothing of history begins with the candidates that earlier tasks hold best."""

    def make(problem: SearchProblem) -> Strategy:
        strategy = _portfolio(problem) if name == "portfolio" else _made(name, problem)
        if not problem.history:
            return strategy
        from ..with_history import BegunWithHistory

        return BegunWithHistory(problem, strategy)

    return make


def _warm(problem: SearchProblem) -> Strategy:
    from .warm import WarmSearch

    return WarmSearch(problem, _made("model", replace(problem, history=())))


def _portfolio(problem: SearchProblem) -> Strategy:
    from .portfolio import Portfolio

    return Portfolio(problem, [_made(name, problem) for name in ("model", "evolution", "annealing")])


STRATEGIES: dict[str, Callable[[SearchProblem], Strategy]] = {
    "random": _begun("random"),
    "exhaustive": _begun("exhaustive"),
    "evolution": _begun("evolution"),
    "annealing": _begun("annealing"),
    "model": lambda problem: _made("model", problem),
    "warm": _warm,
    "portfolio": _begun("portfolio"),
    "tpe": _begun("tpe"),
    "gaussian": _begun("gaussian"),
}
"""Name -> strategy for a problem. ``tpe`` and ``gaussian`` are other systems' ways, to compare with."""
