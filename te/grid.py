"""The grid of a Triton kernel as an expression of whole numbers: ``cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)``.

An expression has whole numbers, names, the operators ``+ - * // %``, and the functions ``cdiv``, ``min`` and ``max`` of
two operands. It is read, and never run as code.
"""

import ast
from collections.abc import Mapping

from ..core.errors import InvalidWorkload

MAX_LENGTH = 512
"""How many characters an expression may have."""
MAX_NESTING = 64
MAX_NUMBER = (1 << 63) - 1


def grid_names(text: str, field: str) -> frozenset[str]:
    """Return the names that an expression reads. Raises InvalidWorkload for what is no such expression."""
    tree = _parsed(text, field)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)


def grid_value(text: str, names: Mapping[str, object], field: str) -> int:
    """Return the value of an expression. Raises InvalidWorkload where a name has no whole number, where a divisor is
    not positive, and for a number beyond 64 bits."""
    return _value(_parsed(text, field), names, field)


def _parsed(text: str, field: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise InvalidWorkload(f"{len(text)} characters; allowed: at most {MAX_LENGTH}", field=field)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidWorkload(f"{text[:80]!r} is no expression: {error}", field=field) from None
    _check(tree, text, field, 1)
    return tree


def _check(node: ast.expr, text: str, field: str, depth: int) -> None:
    if depth > MAX_NESTING:
        raise InvalidWorkload(f"an expression nested deeper than {MAX_NESTING}", field=field)
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool) and value <= MAX_NUMBER:
            return
        case ast.Name():
            return
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right=right):
            operands = [left, right]
        case ast.Call(func=ast.Name(id="cdiv" | "min" | "max"), args=[first, second], keywords=[]):
            operands = [first, second]
        case _:
            allowed = "whole numbers, names, + - * // %, cdiv(a, b), min(a, b), max(a, b)"
            raise InvalidWorkload(f"{ast.unparse(node)[:80]!r} in {text[:80]!r}; allowed: {allowed}", field=field)
    for operand in operands:
        _check(operand, text, field, depth + 1)


def _value(node: ast.expr, names: Mapping[str, object], field: str) -> int:
    if isinstance(node, ast.Constant):
        return int(str(node.value))
    if isinstance(node, ast.Name):
        found = names.get(node.id)
        if not isinstance(found, int):
            given = "unknown" if node.id not in names else f"{found!r}, no whole number"
            raise InvalidWorkload(f"the grid reads {node.id}, which is {given}", field=field)
        return int(found)
    if isinstance(node, ast.Call):
        a, b = (_value(operand, names, field) for operand in node.args)
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        value = max(a, b) if function == "max" else min(a, b) if function == "min" else -(-a // _divisor(b, field))
    else:
        assert isinstance(node, ast.BinOp)
        a, b = _value(node.left, names, field), _value(node.right, names, field)
        match node.op:
            case ast.Add():
                value = a + b
            case ast.Sub():
                value = a - b
            case ast.Mult():
                value = a * b
            case ast.FloorDiv():
                value = a // _divisor(b, field)
            case _:
                value = a % _divisor(b, field)
    if abs(value) > MAX_NUMBER:
        raise InvalidWorkload("the grid has a number beyond 64 bits", field=field)
    return value


def _divisor(value: int, field: str) -> int:
    if value <= 0:
        raise InvalidWorkload(f"the grid divides by {value}; allowed: positive numbers", field=field)
    return value
