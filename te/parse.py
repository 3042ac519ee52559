"""Reads workloads from their text form: what ``te.text`` prints, and what people write.

    A: float32[512, 256]
    B: float32[256, 128]                       # constant
    C[i, j] = sum over k < 256 of A[i, k] * B[k, j]
    Y[i, j] = max(C[i, j], 0)                  # output

An input has a dtype and a shape. A stage has axes, and an expression or one reduction of it. An axis goes as far as the
dimension that it reads alone; ``C[i < 512, j] = ...`` or ``# float32[512, 128]`` behind the line says it otherwise.
A line ``precision: tf32`` says which roundings are allowed.

``# dynamic, measured at 256`` behind an input says that every call gives the extent of its first dimension. It is at
most the one in the shape. ``# dynamic keys_extent in dimension 1, measured at 256`` says so of another dimension, and
expressions may read its extent by that name.

What no stage reads is an output, and so is what is marked. A number takes the dtype of what it is combined with, unless
it has a suffix (``0.5f16``); numbers are combined as Python does it (``X[i] * (1 / 3)``). Stages may use the same names
of axes.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NoReturn

from ..core.dtypes import DTYPES, INDEX, INPUT_DTYPES, DType, boolean, float32, int64, uint8
from ..core.errors import InvalidWorkload
from ..core.precision import IEEE, PRECISIONS
from ..ir.buffer import Buffer
from ..ir.expr import (
    BITWISE,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Select,
    Unary,
    UnaryOp,
    Var,
    walk,
)
from ..ir.rewrite import loads_of
from .check import check
from .limits import MAX_DEPTH, MAX_TENSORS
from .packed_floats import e2m1, e8m0
from .workload import Axis, DynamicDimension, Reducer, Stage, Workload

MAX_TEXT = 1 << 18
"""How many characters a text may have."""
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_TYPE = rf"({_NAME})\s*\[([\d\s,]*)\]"
_INPUT = re.compile(rf"({_NAME})\s*:\s*{_TYPE}")
_STAGE = re.compile(rf"({_NAME})\s*\[([^\]]*)\]\s*=(?!=)(.*)")
_PRECISION = re.compile(r"precision\s*:\s*(\S+)")
_SKEW = re.compile(r"\bskew\s+(\d+\.?\d*(?:e[+-]?\d+)?)\s*\Z")
_DYNAMIC = re.compile(rf"\bdynamic(?: ({_NAME}))??(?: in dimension (\d{{1,2}}))?, measured at (\d{{1,12}})\b")
_AXIS = re.compile(rf"({_NAME})\s*(?:<\s*(\d{{1,12}}))?")
_REDUCTION = re.compile(rf"({'|'.join(Reducer)})\s+over\s+(.*?)\s+of\b(.*)")
_SUFFIXES = {"f64": "float64", "f16": "float16", "bf16": "bfloat16", "i32": "int32", "i8": "int8", "u8": "uint8"}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*(?:e[+-]?\d+)?|inf)(?P<suffix>bf16|f64|f16|i32|i8|u8)?(?![A-Za-z0-9_.]))"
    rf"|(?P<name>{_NAME})|(?P<symbol>//|<=|>=|==|!=|[-+*/%<>()\[\],])|(?P<end>\Z)|(?P<other>.))"
)
_BINARY = {
    "+": (BinaryOp.ADD, 5),
    "-": (BinaryOp.SUB, 5),
    "*": (BinaryOp.MUL, 6),
    "/": (BinaryOp.DIV, 6),
    "//": (BinaryOp.FLOORDIV, 6),
    "%": (BinaryOp.MOD, 6),
}
_ARITHMETIC: Mapping[BinaryOp, Callable[[float, float], float]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.DIV: operator.truediv,
    BinaryOp.FLOORDIV: operator.floordiv,
    BinaryOp.MOD: operator.mod,
}
_COMPARE = dict(zip(("<", "<=", ">", ">=", "==", "!="), CompareOp, strict=True))
_FUNCTIONS = {op.value: op for op in UnaryOp if op not in (UnaryOp.NEG, UnaryOp.NOT)}
_PAIRS = {"max": BinaryOp.MAX, "min": BinaryOp.MIN, "pow": BinaryOp.POW, **{str(op): op for op in sorted(BITWISE)}}
_OR, _AND, _NOT, _COMPARISON, _SUM, _NEGATION = 1, 2, 3, 4, 5, 7
_MOST_NESTED = 2 * MAX_DEPTH + 20
"""A level of nesting counts twice: as an operand and as what is in the parentheses."""
_MOST_SHOWN = 60
"""How many characters of a line an error shows."""
_REDUCERS = frozenset(str(reducer) for reducer in Reducer)
_A_REDUCTION = "a reduction is all that a stage is: C[i] = sum over k of A[i, k]"
_Operand = Expr | float


def parse_workload(text: str) -> Workload:
    """Return the checked workload that ``text`` describes. Raises InvalidWorkload that names the line."""
    if len(text) > MAX_TEXT:
        raise InvalidWorkload(f"a text of {len(text)} characters; allowed: {MAX_TEXT}", field="/")
    lines = [(n, *_split(line)) for n, line in enumerate(text.splitlines(), 1)]
    lines = [(n, code, note) for n, code, note in lines if code]
    if not lines:
        raise InvalidWorkload("the text is empty; write inputs (A: float32[4, 8]) and stages (C[i] = ...)", field="/")
    tensors = {found[1] for _, code, _ in lines if (found := _INPUT.match(code) or _STAGE.match(code))}
    reader = _TextParser(
        tensors | {extent[1] for _, _, note in lines for extent in _DYNAMIC.finditer(note) if extent[1]}
    )
    for number, code, note in lines:
        reader.read(number, code, note)
    return reader.workload()


def _split(line: str) -> tuple[str, str]:
    code, _, note = line.partition("#")
    return code.strip(), note.strip()


def _shown(code: str) -> str:
    return repr(code if len(code) <= _MOST_SHOWN else f"{code[:_MOST_SHOWN]}…")


def _fail(line: int, message: str) -> NoReturn:
    raise InvalidWorkload(f"line {line}: {message}", field="/")


@dataclass
class _TextParser:
    """Collects the tensors of a text. ``taken`` are the names of all tensors and extents, and of the axes so
    far."""

    taken: set[str]
    inputs: list[Buffer] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)
    skews: dict[str, float] = field(default_factory=dict)
    dynamic: dict[str, DynamicDimension] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)
    lines: dict[str, int] = field(default_factory=dict)
    precision: str = IEEE

    def read(self, line: int, code: str, note: str) -> None:
        given, stage = _INPUT.fullmatch(code), _STAGE.fullmatch(code)
        found = given or stage
        if found is None and (chosen := _PRECISION.fullmatch(code)):
            if chosen[1] not in PRECISIONS:
                _fail(line, f"{chosen[1]!r} is no precision; allowed: {', '.join(PRECISIONS)}")
            self.precision = chosen[1]
            return
        if found is None:
            _fail(line, f"{_shown(code)} is neither an input (A: float32[4, 8]) nor a stage (C[i, j] = A[i, j] * 2)")
        name = found[1]
        if name in self.lines:
            _fail(line, f"{name} stands in line {self.lines[name]} already")
        self.lines[name] = line
        if len(self.lines) > 2 * MAX_TENSORS:
            _fail(line, f"more than {2 * MAX_TENSORS} tensors")
        if given:
            self.inputs.append(Buffer(name, _shape(given[3]), _dtype(line, given[2])))
            self.constants |= {name} if note.startswith("constant") else set()
            if skew := _SKEW.search(note):
                self.skews[name] = float(skew[1])
            for extent in _DYNAMIC.finditer(note):
                self._dynamic(line, extent[1] or "", (name, int(extent[2] or 0)), int(extent[3]))
        elif stage:
            self.marked |= {name} if note.startswith("output") else set()
            self._stage(line, name, stage[2], stage[3].strip(), note.removeprefix("output").strip())

    def _dynamic(self, line: int, name: str, place: tuple[str, int], measured: int) -> None:
        known = self.dynamic.get(name, DynamicDimension(frozenset(), measured, name))
        if known.representative != measured:
            given = f"given: {known.representative} and {measured}"
            _fail(line, f"all places of a dynamic dimension are measured at one extent; {given}")
        self.dynamic[name] = replace(known, places=known.places | {place})

    def _stage(self, line: int, name: str, axes: str, body: str, note: str) -> None:
        declared = re.fullmatch(_TYPE, note)
        reduction = _REDUCTION.fullmatch(body)
        over = _axes(line, reduction[2]) if reduction else {}
        along = _axes(line, axes)
        if over.keys() & along.keys():
            _fail(line, f"{', '.join(over.keys() & along.keys())} is an axis twice")
        names = {axis: self._unlike(axis) for axis in (*along, *over)}
        tensors = {tensor.name: tensor for tensor in (*self.inputs, *(s.tensor for s in self.stages))}
        readable = {name: name for name in self.dynamic if name} | names
        expr = _Expression(line, reduction[3] if reduction else body, tensors, readable).whole()
        extents = _shape(declared[2]) if declared else ()
        if declared and len(extents) != len(along):
            _fail(line, f"{len(along)} axes for the shape {list(extents)}")
        given = {**along, **(dict(zip(along, extents, strict=True)) if declared else {})}
        known = {axis: extent or _read_extent(line, axis, names[axis], expr) for axis, extent in given.items()}
        for axis, extent in over.items():
            if extent is None:
                _fail(line, f"how far {axis} goes is missing: sum over {axis} < 8 of ...")
        reducer = Reducer(reduction[1]) if reduction else None
        dtype = expr.dtype
        if reducer is not None and reducer.is_position:
            dtype = _dtype(line, declared[1]) if declared else int64
        elif declared and _dtype(line, declared[1]) != dtype:
            _fail(line, f"the expression has dtype {dtype}, not {declared[1]}; cast it: {declared[1]}(...)")
        self.stages.append(
            Stage(
                Buffer(name, tuple(known.values()), dtype),
                tuple(Axis(names[axis], extent) for axis, extent in known.items()),
                expr,
                tuple(Axis(names[axis], extent or 0) for axis, extent in over.items()),
                reducer,
            )
        )

    def _unlike(self, name: str) -> str:
        found, n = name, 0
        while found in self.taken:
            n += 1
            found = f"{name}_{n}"
        self.taken.add(found)
        return found

    def workload(self) -> Workload:
        read = {load.buffer.name for stage in self.stages for load in loads_of(stage.body)}
        outputs = tuple(s.name for s in self.stages if s.name in self.marked or s.name not in read)
        made = Workload(
            *(tuple(self.inputs), tuple(self.stages), outputs, frozenset(self.constants), self.precision),
            skews=frozenset(self.skews.items()),
            dynamic=tuple(self.dynamic.values()),
        )
        try:
            return check(made)
        except InvalidWorkload as error:
            where = re.match(r"/(inputs|stages)/(\d+)", error.field)
            if where is None:
                raise
            tensor = self.inputs[int(where[2])] if where[1] == "inputs" else self.stages[int(where[2])].tensor
            raise InvalidWorkload(f"line {self.lines[tensor.name]}: {error.message}", field="/") from error


def _dtype(line: int, name: str) -> DType:
    if name not in INPUT_DTYPES:
        _fail(line, f"{name!r} is no dtype; allowed: {', '.join(INPUT_DTYPES)}")
    return INPUT_DTYPES[name]


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _axes(line: int, text: str) -> dict[str, int | None]:
    """Return the axes of ``i < 4, j`` with their extents; None where none is given."""
    found: dict[str, int | None] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        axis = _AXIS.fullmatch(part)
        if axis is None:
            _fail(line, f"{part[:40]!r} is no axis; allowed: i, or i < 8")
        if axis[1] in found:
            _fail(line, f"{axis[1]} is an axis twice")
        found[axis[1]] = None if axis[2] is None else int(axis[2])
    return found


def _read_extent(line: int, axis: str, name: str, expr: Expr) -> int:
    """Return the extent of the dimensions that an axis reads alone."""
    found = {
        extent: e.buffer.name
        for e in walk(expr)
        if isinstance(e, Load)
        for at, extent in zip(e.indices, e.buffer.shape, strict=True)
        if at == Var(name)
    }
    if len(found) == 1:
        return next(iter(found))
    if not found:
        _fail(line, f"how far {axis} goes is not known; write it: [{axis} < 8]")
    both = " or ".join(f"{extent} ({tensor})" for extent, tensor in sorted(found.items()))
    _fail(line, f"{axis} could go to {both}; write which: [{axis} < {min(found)}]")


@dataclass
class _Expression:
    """A recursive-descent parser of one expression. ``axes`` maps the names that the line uses to those of the
    workload."""

    line: int
    text: str
    tensors: Mapping[str, Buffer]
    axes: Mapping[str, str]

    def __post_init__(self) -> None:
        self._tokens: Iterator[re.Match[str]] = _TOKEN.finditer(self.text)
        self._depth = 0
        self._next()

    def whole(self) -> Expr:
        found = self._operand(_OR)
        if self._kind != "end":
            _fail(self.line, f"{self._token!r} is not expected here")
        return _typed(found, None)

    def _next(self) -> None:
        match = next(self._tokens)
        self._kind, self._suffix = match.lastgroup or "number", match["suffix"]
        if self._kind == "suffix":
            self._kind = "number"
        self._token = match[self._kind]
        if self._kind == "other":
            _fail(self.line, f"{self._token!r} has no meaning in an expression")

    def _take(self, *symbols: str) -> str | None:
        if self._token in symbols and self._kind in ("symbol", "name"):
            taken = self._token
            self._next()
            return taken
        return None

    def _expect(self, symbol: str) -> None:
        if self._take(symbol) is None:
            _fail(self.line, f"{symbol!r} is missing before {self._token or 'the end'!r}")

    def _operand(self, binding: int) -> _Operand:
        """Parse what binds at least as tightly as ``binding``."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            _fail(self.line, f"nested deeper than {MAX_DEPTH}")
        if binding <= _NOT and self._take("not"):
            left: _Operand = Unary(UnaryOp.NOT, _typed(self._operand(_NOT), None))
        elif self._take("-"):
            is_number = self._kind == "number"
            inner = self._operand(_NEGATION)
            if is_number and isinstance(inner, Const):
                left = Const(-inner.value, inner.type)
            else:
                left = Unary(UnaryOp.NEG, inner) if isinstance(inner, Expr) else -inner
        else:
            left = self._atom()
        for _ in range(MAX_DEPTH):
            symbol = self._token if self._kind in ("symbol", "name") else ""
            if symbol in _BINARY and _BINARY[symbol][1] >= binding:
                self._next()
                op, own = _BINARY[symbol]
                right = self._operand(own + 1)
                if isinstance(left, Expr) or isinstance(right, Expr):
                    left = Binary(op, *_alike(left, right))
                else:
                    left = self._of_numbers(op, left, right)
            elif symbol in _COMPARE and binding <= _COMPARISON:
                self._next()
                left = Compare(_COMPARE[symbol], *_alike(left, self._operand(_SUM)))
            elif symbol in ("and", "or") and binding <= (_AND if symbol == "and" else _OR):
                self._next()
                right = self._operand((_AND if symbol == "and" else _OR) + 1)
                left = Logic(LogicOp(symbol), _typed(left, None), _typed(right, None))
            else:
                self._depth -= 1
                return left
        _fail(self.line, f"more than {MAX_DEPTH} operators in a row; use parentheses, or a further stage")

    def _of_numbers(self, op: BinaryOp, a: float, b: float) -> float:
        """Return what an operation of two plain numbers gives, as Python computes it: a plain number again."""
        try:
            found = _ARITHMETIC[op](a, b)
            float(found)  # no float holds the largest whole numbers
            return found
        except (ArithmeticError, ValueError) as error:
            _fail(self.line, f"{a} {op} {b}: {error}")

    def _atom(self) -> _Operand:
        kind, token, suffix = self._kind, self._token, self._suffix
        if kind == "end":
            _fail(self.line, "the expression ends too early")
        self._next()
        if kind == "number":
            bare = token.removesuffix(suffix or "")
            value = inf if bare == "inf" else float(bare) if set(bare) & {".", "e"} else int(bare[:40])
            if value == inf and bare != "inf":
                _fail(self.line, f"{bare} is beyond the largest float; where infinity is meant, write inf")
            return value if suffix is None else _constant(value, DTYPES[_SUFFIXES[suffix]])
        if token == "(":
            inside = self._operand(_OR)
            self._expect(")")
            return inside
        if kind != "name":
            _fail(self.line, f"{token!r} is not expected here")
        return self._named(token)

    def _named(self, name: str) -> Expr:
        if name in ("true", "false"):
            return Const(name == "true", boolean)
        if self._take("("):
            arguments = self._list(")")
            return self._call(name, arguments)
        if name in self.axes and name not in self.tensors:
            return Var(self.axes[name])
        tensor = self.tensors.get(name)
        if tensor is None:
            if name in _REDUCERS:
                _fail(self.line, f"{name} stands inside an expression, or has no 'over' or 'of'; {_A_REDUCTION}")
            known = ", ".join([*self.tensors, *self.axes]) or "nothing"
            _fail(self.line, f"{name} is not known here; known: {known}")
        self._expect("[")
        at = [_typed(index, INDEX) for index in self._list("]")]
        if len(at) != len(tensor.shape):
            _fail(self.line, f"{name} has {len(tensor.shape)} dimensions but is read at {len(at)} indices")
        return Load(tensor, tuple(at))

    def _list(self, closing: str) -> list[_Operand]:
        if self._take(closing):
            return []
        self._depth += 1
        found = [self._operand(_OR)]
        while self._take(","):
            found.append(self._operand(_OR))
        self._depth -= 1
        self._expect(closing)
        return found

    def _call(self, name: str, given: list[_Operand]) -> Expr:
        if name in DTYPES and len(given) == 1:
            (value,) = given
            return Cast(value, DTYPES[name]) if isinstance(value, Expr) else _constant(value, DTYPES[name])
        if name == "select" and len(given) == 3:
            return Select(_typed(given[0], None), *_alike(given[1], given[2]))
        if name in _PAIRS and len(given) == 2:
            return Binary(_PAIRS[name], *_alike(*given))
        if name in _FUNCTIONS and len(given) == 1:
            return Unary(_FUNCTIONS[name], _typed(given[0], None))
        if name == "e2m1" and len(given) == 2:
            return e2m1(_typed(given[0], uint8), _typed(given[1], INDEX))
        if name == "e8m0" and len(given) == 1:
            return e8m0(_typed(given[0], uint8))
        allowed = f"{', '.join(_FUNCTIONS)}, e8m0, max, min, pow and e2m1 of two, select of three, and dtypes as casts"
        hint = f"; {_A_REDUCTION}" if name in _REDUCERS else ""
        _fail(self.line, f"{name} of {len(given)} is no function; allowed: {allowed}{hint}")


def _constant(value: float, dtype: DType) -> Const:
    """Return a number of a dtype; a whole one may become a float, never the other way round."""
    return Const(float(value) if dtype.is_float else value, dtype)


def _typed(value: _Operand, dtype: DType | None) -> Expr:
    """Return ``value`` as an expression; a plain number has ``dtype``, or float32, or the dtype of indices."""
    if isinstance(value, Expr):
        return value
    return _constant(value, dtype or (float32 if isinstance(value, float) else INDEX))


def _alike(a: _Operand, b: _Operand) -> tuple[Expr, Expr]:
    """Return two operands; a plain number among them takes the dtype of the other."""
    return (
        _typed(a, b.dtype if isinstance(b, Expr) else None),
        _typed(b, a.dtype if isinstance(a, Expr) else None),
    )
