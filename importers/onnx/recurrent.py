"""Recurrent layers of ONNX."""

from collections.abc import Sequence

from ...graph.graph import Value
from ..aten.recurrent import Direction, Step, all_steps, gru_step, lstm_step, plain_step
from ..aten.rule import reshape, slice_, transpose
from .call import Call, need, rule
from .elementwise import like

_MOST_STEPS = 1024

_FUNCTIONS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu"}

_KINDS: dict[str, tuple[Step, str, tuple[str, ...], int]] = {
    "RNN": (plain_step, "h", ("Tanh",), 1), "GRU": (gru_step, "zrn", ("Sigmoid", "Tanh"), 1),
    "LSTM": (lstm_step, "iofg", ("Sigmoid", "Tanh", "Tanh"), 2),
}  # fmt: skip
"""The step, its gates in their order, its activations, and how many values are its state."""


def _direction(c: Call, n: int, gates: str, functions: Sequence[str]) -> Direction:
    """Return the weights of direction ``n``."""

    def part(k: int) -> Value | None:
        if not c.has(k):
            return None
        value = c.value(k)
        return reshape(c, slice_(c, value, 0, n, n + 1), value.shape[1:])

    weight, recurrent, bias = part(1), part(2), part(3)
    assert weight is not None and recurrent is not None
    width = weight.shape[0]
    first, second = (None if bias is None else slice_(c, bias, 0, k * width, (k + 1) * width) for k in (0, 1))
    after = c.op != "GRU" or bool(c.get("linear_before_reset", 0))
    return Direction(transpose(c, weight), transpose(c, recurrent), first, second, gates, functions, part(7), after)


@rule("RNN", "GRU", "LSTM")
def _layers(c: Call) -> Sequence[Value]:
    step, gates, usual, states = _KINDS[c.op]
    x, batched = c.value(0), bool(c.get("layout", 0))
    x = transpose(c, x, 0, 1) if batched else x
    steps, batch, _ = x.shape
    way, hidden = c.get("direction", "forward"), c.get("hidden_size", c.value(2).shape[2])
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[way]
    functions = [f.decode() if isinstance(f, bytes) else f for f in c.get("activations") or usual * len(ways)]
    need(steps <= _MOST_STEPS, "so many steps")
    need(c.get("clip") is None and not c.get("input_forget", 0), "clipped gates, or joined ones")
    need(all(f in _FUNCTIONS for f in functions), "activations with numbers")
    if c.has(4):
        need(all(n == steps for n in c.integers(4)), "sequences of several lengths")
    given: list[Value] = []
    last: list[list[Value]] = []
    for n, backward in enumerate(ways):
        own = [_FUNCTIONS[f] for f in functions[n * len(usual) : (n + 1) * len(usual)]]
        state = [_initial(c, 5 + k, n, batched, (batch, hidden)) for k in range(states)]
        found, state = all_steps(c, step, x, state, _direction(c, n, gates, own), backward)
        given.append(reshape(c, found, (steps, 1, batch, hidden)))
        last.append([reshape(c, s, (1, batch, hidden)) for s in state])
    y = c.node("concatenate", *given, dim=1)
    ends = [c.node("concatenate", *(s[k] for s in last), dim=0) for k in range(states)]
    if not batched:
        return [y, *ends]
    return [c.node("permute", y, order=(2, 0, 1, 3)), *(transpose(c, e, 0, 1) for e in ends)]


def _initial(c: Call, n: int, direction: int, batched: bool, shape: tuple[int, int]) -> Value:
    """Return the state that a direction begins with: input ``n``, or zeros."""
    if not c.has(n):
        return c.node("expand", like(c, c.value(0), 0.0), shape=shape)
    value = transpose(c, c.value(n), 0, 1) if batched else c.value(n)
    return reshape(c, slice_(c, value, 0, direction, direction + 1), shape)
