"""Recurrent layers written out step by step, for torch (``tilewright.recurrent`` of ``torch_backend.recurrent``) and
for ONNX. The product with the inputs of all steps is one, and each step has one with the state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...graph.graph import Value
from .rule import Emitter, NodeMaker, need, reshape, rule, slice_, transpose
from .views import joined


@dataclass(frozen=True, slots=True)
class Direction:
    """The weights of one direction of a layer. ``weight`` [i, gates * h] and ``recurrent`` [h, gates * h] have the
    gates in the order that ``gates`` says by a letter each. ``bias`` is that of the inputs, ``recurrent_bias`` that of
    the recurrence, [gates * h]. ``peepholes`` [3 * h] have the gates i, o and f. ``reset_after``: whether the reset
    gate of a GRU is applied to the product with the state, as torch does, or to the state."""

    weight: Value
    recurrent: Value
    bias: Value | None
    recurrent_bias: Value | None
    gates: str
    functions: Sequence[str]
    peepholes: Value | None = None
    reset_after: bool = True

    @property
    def hidden(self) -> int:
        return self.recurrent.shape[0]

    def columns(self, b: NodeMaker, x: Value, first: str, count: int = 1) -> Value:
        """Return the columns of ``count`` gates from ``first`` on."""
        at = self.gates.index(first) * self.hidden
        return slice_(b, x, len(x.shape) - 1, at, at + count * self.hidden)

    def with_state(self, b: NodeMaker, h: Value) -> Value:
        """Return what all gates take from the state."""
        product = b.node("matmul", h, self.recurrent)
        return product if self.recurrent_bias is None else b.node("add", product, self.recurrent_bias)


Step = Callable[[NodeMaker, Value, Sequence[Value], Direction], list[Value]]
"""What the gates take from the inputs of a step [n, gates * h], and the state -> the new state, whose first value is
given out."""


def plain_step(b: NodeMaker, x: Value, state: Sequence[Value], d: Direction) -> list[Value]:
    return [b.node(d.functions[0], b.node("add", x, d.with_state(b, state[0])))]


def gru_step(b: NodeMaker, x: Value, state: Sequence[Value], d: Direction) -> list[Value]:
    """Gates z (update), r (reset) and n (new)."""
    (h,) = state
    if d.reset_after:
        inner = d.with_state(b, h)
    else:  # z and r stand before n
        inner = b.node("matmul", h, slice_(b, d.recurrent, 1, 0, 2 * d.hidden))
        if d.recurrent_bias is not None:
            inner = b.node("add", inner, slice_(b, d.recurrent_bias, 0, 0, 2 * d.hidden))
    z, r = (
        b.node(d.functions[0], b.node("add", d.columns(b, x, gate), d.columns(b, inner, gate))) for gate in ("z", "r")
    )
    if d.reset_after:
        last = b.node("mul", r, d.columns(b, inner, "n"))
    else:
        last = b.node("matmul", b.node("mul", r, h), d.columns(b, d.recurrent, "n"))
        if d.recurrent_bias is not None:
            last = b.node("add", last, d.columns(b, d.recurrent_bias, "n"))
    new = b.node(d.functions[1], b.node("add", d.columns(b, x, "n"), last))
    return [b.node("add", new, b.node("mul", z, b.node("sub", h, new)))]


def lstm_step(b: NodeMaker, x: Value, state: Sequence[Value], d: Direction) -> list[Value]:
    """Gates i (input), o (output), f (forget) and g (cell)."""
    h, cell = state
    gates = b.node("add", x, d.with_state(b, h))

    def gate(name: str, cell: Value) -> Value:
        part = d.columns(b, gates, name)
        if d.peepholes is not None:
            at = "iof".index(name) * d.hidden
            seen = slice_(b, d.peepholes, 0, at, at + d.hidden)
            part = b.node("add", part, b.node("mul", cell, seen))
        return b.node(d.functions[0], part)

    i, f = gate("i", cell), gate("f", cell)
    new = b.node(d.functions[1], d.columns(b, gates, "g"))
    cell = b.node("add", b.node("mul", f, cell), b.node("mul", i, new))
    return [b.node("mul", gate("o", cell), b.node(d.functions[2], cell)), cell]


def all_steps(
    b: NodeMaker, step: Step, x: Value, state: Sequence[Value], d: Direction, backward: bool
) -> tuple[Value, list[Value]]:
    """Return what all steps give, [t, n, h] of ``x`` [t, n, i], and the last state."""
    steps, rows, _ = x.shape
    inputs = b.node("matmul", reshape(b, x, (steps * rows, x.shape[2])), d.weight)
    inputs = inputs if d.bias is None else b.node("add", inputs, d.bias)
    found: list[Value] = []
    for t in reversed(range(steps)) if backward else range(steps):
        state = step(b, slice_(b, inputs, 0, t * rows, (t + 1) * rows), state, d)
        found.append(reshape(b, state[0], (1, rows, d.hidden)))
    return joined(b, found[::-1] if backward else found, 0), list(state)


_KINDS: dict[str, tuple[Step, str, tuple[str, ...]]] = {
    "lstm": (lstm_step, "ifgo", ("sigmoid", "tanh", "tanh")),
    "gru": (gru_step, "rzn", ("sigmoid", "tanh")),
    "rnn_tanh": (plain_step, "h", ("tanh",)),
    "rnn_relu": (plain_step, "h", ("relu",)),
}
"""The step, its gates in their order, and its activations."""
_MOST_STEPS = 4096
"""Of all layers together: more would take long to compile."""


@rule("tilewright.recurrent.default")
def _layers(b: Emitter, x: Value, states: Sequence[Value], weights: Sequence[Value], kind: str, biases: bool,
            layers: int, both: bool, batch_first: bool, order: Sequence[int]) -> Sequence[Value]:  # fmt: skip
    step, gates, functions = _KINDS[kind]
    ways = [False, True] if both else [False]
    each = 4 if biases else 2
    need(len(weights) == layers * len(ways) * each, "projections")
    x = transpose(b, x, 0, 1) if batch_first else x
    need(x.shape[0] * layers * len(ways) <= _MOST_STEPS, "so many steps")
    last: list[list[Value]] = []
    for layer in range(layers):
        given: list[Value] = []
        for way, backward in enumerate(ways):
            at = layer * len(ways) + way
            weight, matrix, *own = weights[at * each : (at + 1) * each]
            if biases and kind != "gru":  # one of both is enough
                own = [b.node("add", *own)]
            bias, recurrent_bias = (own[n] if n < len(own) else None for n in (0, 1))
            both_weights = transpose(b, weight), transpose(b, matrix)
            direction = Direction(*both_weights, bias, recurrent_bias, gates, functions)
            state = [reshape(b, slice_(b, s, 0, at, at + 1), s.shape[1:]) for s in states]
            found, state = all_steps(b, step, x, state, direction, backward)
            given.append(found)
            last.append([reshape(b, s, (1, *s.shape)) for s in state])
        x = given[0] if len(given) == 1 else b.node("concatenate", *given, dim=2)
    ends = [b.node("concatenate", *(s[k] for s in last), dim=0) for k in range(len(states))]
    return [transpose(b, x, 0, 1) if batch_first else x, *ends]
