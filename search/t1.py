"""Reads and writes descriptions of search spaces in the T1 form (github.com/odgaard/TuningSchema).

``ConfigurationSpace`` has ``TuningParameters`` (name, type, the text of a list of values, default) and ``Conditions``,
each an expression in Python over parameters: comparisons, ``and``, ``or``, ``not`` and arithmetic. The legal settings
are those that keep all conditions. ``KernelSpecification`` names the kernel.
"""

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InvalidParameter
from ..schedule.space.knob import Knob
from ..schedule.space.space import Space

Column = NDArray[Any]
MOST_SETTINGS = 4_000_000
"""A space with more settings is refused, also while it is being made."""
_TYPES: Mapping[type, str] = {int: "int", str: "string"}


def read_t1(path: Path) -> tuple[Space, tuple[str, ...]]:
    """Return the space that a file describes, with all its legal settings, and its conditions. Raises
    InvalidParameter."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        parameters = document["ConfigurationSpace"]["TuningParameters"]
        conditions = tuple(str(c["Expression"]) for c in document["ConfigurationSpace"].get("Conditions") or ())
        kernel = str(document.get("KernelSpecification", {}).get("KernelName", path.stem))
        knobs = tuple(_knob(parameter, kernel) for parameter in parameters)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SyntaxError) as error:
        raise InvalidParameter(f"{path.name} is no description in the T1 form ({error!r})", field="path") from error
    codes = _legal(knobs, conditions)
    return Space(kernel, 1, knobs, codes, {}, len(codes)), conditions


def write_t1(path: Path, space: Space, conditions: Sequence[str] = ()) -> None:
    """Write a space whose legal settings are those that keep ``conditions``. Raises InvalidParameter where they are
    others, since readers would search settings that are illegal, or miss legal ones."""
    legal = _legal(space.knobs, conditions)
    if len(legal) != len(space) or len(np.unique(np.concatenate([legal, space.codes]), axis=0)) != len(legal):
        raise InvalidParameter(
            f"the conditions leave {len(legal)} settings, and {space.sketch} has {len(space)}, or others; allowed: "
            "conditions that exactly the settings of the space keep",
            field="conditions",
        )
    document = {
        "General": {"BenchmarkName": space.sketch, "OutputFormat": "JSON"},
        "ConfigurationSpace": {
            "TuningParameters": [
                {
                    "Name": knob.name,
                    "Type": _TYPES[type(knob.values[0])],
                    "Values": repr(list(knob.values)),
                    "Default": knob.values[0],
                }
                for knob in space.knobs
            ],
            "Conditions": [{"Expression": text, "Parameters": sorted(_names(text))} for text in conditions],
        },
        "KernelSpecification": {"KernelName": space.sketch},
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _knob(parameter: Mapping[str, Any], kernel: str) -> Knob:
    given = parameter["Values"]
    values = ast.literal_eval(given) if isinstance(given, str) else given
    if not values or any(not isinstance(v, int | str) for v in values):
        raise ValueError(f"{parameter['Name']} has values that are neither whole numbers nor texts")
    own = tuple(dict.fromkeys(int(v) if isinstance(v, bool) else v for v in values))
    return Knob(str(parameter["Name"]), own, f"{parameter['Name']} of {kernel}")


def _legal(knobs: Sequence[Knob], conditions: Sequence[str]) -> NDArray[np.int16]:
    """int16[n, knobs]: all settings that keep the conditions. Each is applied as soon as its parameters are chosen."""
    waiting = {text: _names(text) for text in conditions}
    unknown = set().union(*waiting.values()) - {knob.name for knob in knobs}
    if unknown:
        raise InvalidParameter(f"a condition has {sorted(unknown)[0]!r}, which is no parameter", field="conditions")
    codes = np.zeros((1, 0), np.int16)
    for place, knob in enumerate(knobs):
        if len(codes) * len(knob.values) > MOST_SETTINGS:
            raise InvalidParameter(f"the space has over {MOST_SETTINGS} settings", field="path")
        chosen = np.tile(np.arange(len(knob.values), dtype=np.int16), len(codes))
        codes = np.concatenate([np.repeat(codes, len(knob.values), axis=0), chosen[:, None]], axis=1)
        known = {k.name: np.asarray(k.values)[codes[:, n]] for n, k in enumerate(knobs[: place + 1])}
        for text in [text for text, names in waiting.items() if names <= known.keys()]:
            del waiting[text]
            kept = np.broadcast_to(np.asarray(_value(_parsed(text), known), np.bool_), len(codes))
            codes = codes[kept]
            known = {name: column[kept] for name, column in known.items()}
    return codes


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidParameter(f"the condition {text[:80]!r} cannot be read: {error}", field="conditions") from error


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}


_OPERATIONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide, ast.Mod: np.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.And: np.logical_and, ast.Or: np.logical_or,
}  # fmt: skip


def _value(node: ast.expr, known: Mapping[str, Column]) -> Any:
    """Return the value of an expression for all settings at once. Raises InvalidParameter for what is not allowed in
    it."""
    match node:
        case ast.Name(id=name):
            return known[name]
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return np.logical_not(_value(operand, known))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, known)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            with np.errstate(divide="ignore", invalid="ignore"):
                return _OPERATIONS[type(op)](_value(left, known), _value(right, known))
        case ast.BoolOp(op=op, values=values):
            found = _value(values[0], known)
            for one in values[1:]:
                found = _OPERATIONS[type(op)](found, _value(one, known))
            return found
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATIONS for op in ops):
            sides = [_value(side, known) for side in (left, *others)]
            held: Any = True
            for comparison, one, other in zip(ops, sides, sides[1:], strict=False):
                held = np.logical_and(held, _OPERATIONS[type(comparison)](one, other))
            return held
    raise InvalidParameter(
        f"{ast.unparse(node)[:80]!r} is not allowed in a condition; allowed: parameters, numbers, texts, + - * / // %, "
        "comparisons, and, or, not",
        field="conditions",
    )
