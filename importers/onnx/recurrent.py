"""Recurrent layers of ONNX, written out step by step: the product with the inputs of all steps is one."""

from collections.abc import Callable, Sequence

from ...graph.graph import Value
from ..aten.rule import reshape, slice_, transpose
from .call import Call, need, rule
from .elementwise import like

_MOST_STEPS = 256

Step = Callable[[Call, Value, list[Value], "_Layer"], list[Value]]
"""The product with the inputs of a step [n, gates * h], and the state -> the new state, whose first value is given
out."""

_FUNCTIONS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "Softsign": "", "HardSigmoid": "",
              "Affine": "", "LeakyRelu": "", "Elu": ""}  # fmt: skip


class _Layer:
    """The weights of one direction. ``recurrent``: [h, gates * h]; ``bias``: of the inputs and of the recurrence."""

    def __init__(self, c: Call, direction: int, gates: int, hidden: int, functions: Sequence[str]) -> None:
        def part(n: int) -> Value | None:
            if not c.has(n):
                return None
            value = c.value(n)
            return reshape(c, slice_(c, value, 0, direction, direction + 1), value.shape[1:])

        weight, recurrent, bias = part(1), part(2), part(3)
        assert weight is not None and recurrent is not None
        self.hidden, self.gates, self.functions = hidden, gates, functions
        self.weight, self.recurrent = transpose(c, weight), transpose(c, recurrent)
        width = gates * hidden
        self.bias = None if bias is None else [slice_(c, bias, 0, n * width, (n + 1) * width) for n in (0, 1)]
        self.peepholes = part(7)

    def gate(self, c: Call, x: Value, n: int) -> Value:
        """The columns of gate ``n``."""
        return slice_(c, x, len(x.shape) - 1, n * self.hidden, (n + 1) * self.hidden)

    def apply(self, c: Call, n: int, x: Value) -> Value:
        """Activation ``n``."""
        return c.node(_FUNCTIONS[self.functions[n]], x)

    def peep(self, c: Call, x: Value, n: int, cell: Value) -> Value:
        """``x`` with what gate ``n`` sees of the cell."""
        if self.peepholes is None:
            return x
        return c.node("add", x, c.node("mul", cell, self.gate(c, self.peepholes, n)))


def _plain(c: Call, x: Value, state: list[Value], layer: _Layer) -> list[Value]:
    return [layer.apply(c, 0, c.node("add", x, _recurrent(c, state[0], layer)))]


def _recurrent(c: Call, h: Value, layer: _Layer) -> Value:
    product = c.node("matmul", h, layer.recurrent)
    return product if layer.bias is None else c.node("add", product, layer.bias[1])


def _gru(c: Call, x: Value, state: list[Value], layer: _Layer) -> list[Value]:
    (h,) = state
    inner = _recurrent(c, h, layer) if c.get("linear_before_reset", 0) else None
    if inner is None:
        gates = c.node("matmul", h, slice_(c, layer.recurrent, 1, 0, 2 * layer.hidden))
        if layer.bias is not None:
            gates = c.node("add", gates, slice_(c, layer.bias[1], 0, 0, 2 * layer.hidden))
    else:
        gates = inner
    z, r = (layer.apply(c, 0, c.node("add", layer.gate(c, x, n), layer.gate(c, gates, n))) for n in (0, 1))
    if inner is not None:
        last = c.node("mul", r, layer.gate(c, inner, 2))
    else:
        last = c.node("matmul", c.node("mul", r, h), layer.gate(c, layer.recurrent, 2))
        if layer.bias is not None:
            last = c.node("add", last, layer.gate(c, layer.bias[1], 2))
    new = layer.apply(c, 1, c.node("add", layer.gate(c, x, 2), last))
    return [c.node("add", new, c.node("mul", z, c.node("sub", h, new)))]


def _lstm(c: Call, x: Value, state: list[Value], layer: _Layer) -> list[Value]:
    h, cell = state
    gates = c.node("add", x, _recurrent(c, h, layer))
    parts = [layer.gate(c, gates, n) for n in range(4)]  # input, output, forget, cell
    i = layer.apply(c, 0, layer.peep(c, parts[0], 0, cell))
    f = layer.apply(c, 0, layer.peep(c, parts[2], 2, cell))
    cell = c.node("add", c.node("mul", f, cell), c.node("mul", i, layer.apply(c, 1, parts[3])))
    o = layer.apply(c, 0, layer.peep(c, parts[1], 1, cell))
    return [c.node("mul", o, layer.apply(c, 2, cell)), cell]


_KINDS: dict[str, tuple[Step, int, tuple[str, ...], int]] = {
    "RNN": (_plain, 1, ("Tanh",), 1), "GRU": (_gru, 3, ("Sigmoid", "Tanh"), 1),
    "LSTM": (_lstm, 4, ("Sigmoid", "Tanh", "Tanh"), 2),
}  # fmt: skip
"""The step, how many gates it has, its activations, and how many values are its state."""


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
    need(all(_FUNCTIONS.get(f) for f in functions), "activations with numbers")
    if c.has(4):
        need(all(n == steps for n in c.integers(4)), "sequences of several lengths")
    given: list[list[Value]] = []
    last: list[list[Value]] = []
    for n, backward in enumerate(ways):
        layer = _Layer(c, n, gates, hidden, functions[n * len(usual) : (n + 1) * len(usual)])
        state = [_initial(c, 5 + k, n, batched, (batch, hidden)) for k in range(states)]
        inputs = c.node("matmul", reshape(c, x, (steps * batch, x.shape[2])), layer.weight)
        inputs = inputs if layer.bias is None else c.node("add", inputs, layer.bias[0])
        found: list[Value] = []
        for t in reversed(range(steps)) if backward else range(steps):
            state = step(c, slice_(c, inputs, 0, t * batch, (t + 1) * batch), state, layer)
            found.append(reshape(c, state[0], (1, 1, batch, hidden)))
        given.append(found[::-1] if backward else found)
        last.append([reshape(c, s, (1, batch, hidden)) for s in state])
    whole = [c.node("concatenate", *g, dim=0) for g in given]
    y = c.node("concatenate", *whole, dim=1)
    ends = [c.node("concatenate", *(s[k] for s in last), dim=0) for k in range(states)]
    if not batched:
        return [y, *ends]
    return [c.node("permute", y, order=(2, 0, 1, 3)), *(transpose(c, e, 0, 1) for e in ends)]


def _initial(c: Call, n: int, direction: int, batched: bool, shape: tuple[int, int]) -> Value:
    """The state that a direction begins with: input ``n``, or zeros."""
    if not c.has(n):
        return c.node("expand", like(c, c.value(0), 0.0), shape=shape)
    value = transpose(c, c.value(n), 0, 1) if batched else c.value(n)
    return reshape(c, slice_(c, value, 0, direction, direction + 1), shape)
