"""Workloads as JSON, both ways. The form is closed and bounded: ``WORKLOAD_SCHEMA`` describes its structure,
``check`` what a schema cannot say.

    {"inputs":  [{"name": "A", "dtype": "float32", "shape": [4, 8]}, ...],
     "stages":  [{"name": "C", "dtype": "float32", "axes": [{"name": "i", "extent": 4}, ...],
                  "reducer": "sum", "reduce_axes": [{"name": "k", "extent": 8}],
                  "body": {"op": "mul", "args": [{"load": "A", "at": ["i", "k"]}, {"load": "B", "at": ["k", "j"]}]}}],
     "outputs": ["C"]}

An expression is ``{"op", "args"}`` (a cast also has ``dtype``), ``{"load", "at"}``, ``{"axis"}`` or
``{"const", "dtype"}``; infinities are the strings "inf" and "-inf". An index is the name of an axis, a whole number,
or ``{"terms": {axis: coefficient}, "constant": number}``; ``"parts"`` of that are quotients and remainders of indices,
each ``{"op": "floordiv" or "mod", "of": index, "by": number, "times": coefficient}``. A stage that does not reduce has
neither ``reducer`` nor ``reduce_axes``. An input that stays the same from call to call has ``"constant": true``.
One with the ends of skewed groups of rows has its ``"skew"``.
A workload whose ``precision`` is not ``ieee`` names it. One with a dynamic dimension has ``"dynamic": {"inputs":
["A"], "representative": 4096}``: the inputs whose first dimension has an extent that every call gives, at most the one
in their shapes, and the extent that kernels are measured at. ``["K", 1]`` in place of ``"A"`` is another dimension of
an input, counted from 0; ``"name": "keys_extent"`` lets expressions read the extent as ``{"axis": "keys_extent"}``;
and of several dynamic dimensions there is a list. One with ``"kind": "triton"`` is a Triton kernel, in the form of
``te.triton_json``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.dtypes import DTYPES, INPUT_DTYPES, DType
from ..core.errors import InvalidWorkload
from ..core.precision import IEEE
from ..ir.buffer import Buffer
from ..ir.expr import (
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
)
from ..ir.linear_form import LinearForm
from .check import check
from .functions import within
from .groups import MAX_SKEW
from .index import Index, index_of, loaded_index, part_of
from .json_fields import given_words, integer_of, list_of, member_of, object_of, string_of
from .limits import MAX_COEFFICIENT, MAX_DEPTH, MAX_NODES, MAX_RANK, MAX_TENSORS
from .schema import WORKLOAD_SCHEMA
from .triton import TritonWorkload, triton_workload
from .triton_json import KIND, triton_from_json, triton_to_json
from .workload import Axis, DynamicDimension, Reducer, Stage, Workload

__all__ = ["WORKLOAD_SCHEMA", "workload_from_json", "workload_to_json"]

_BINARY = {str(op): op for op in BinaryOp}
_COMPARE = {str(op): op for op in CompareOp}
_LOGIC = {str(op): op for op in LogicOp}
_UNARY = {str(op): op for op in UnaryOp}
_OPERANDS: dict[str, int] = {
    **dict.fromkeys([*_BINARY, *_COMPARE, *_LOGIC], 2),
    **dict.fromkeys(_UNARY, 1),
    "select": 3,
    "cast": 1,
}
"""Every operation of an expression, with the number of its operands."""
_PARTS = {str(op): op for op in (BinaryOp.FLOORDIV, BinaryOp.MOD)}


def workload_to_json(workload: Workload) -> dict[str, object]:
    """``workload`` as JSON values. A checked workload comes back equal from ``workload_from_json``."""
    if isinstance(workload, TritonWorkload):
        return triton_to_json(workload.triton)
    data: dict[str, object] = {
        "inputs": [_input_to_json(t, workload) for t in workload.inputs],
        "stages": [_stage_to_json(s) for s in workload.stages],
        "outputs": list(workload.outputs),
    }
    if workload.precision != IEEE:
        data["precision"] = workload.precision
    if workload.dynamic:
        several = [_dynamic_to_json(d, workload) for d in workload.dynamic]
        data["dynamic"] = several[0] if len(several) == 1 else several
    return data


def _dynamic_to_json(dynamic: DynamicDimension, workload: Workload) -> dict[str, object]:
    order = {t.name: n for n, t in enumerate(workload.inputs)}
    places = sorted(dynamic.places, key=lambda place: (order[place[0]], place[1]))
    data: dict[str, object] = {"name": dynamic.name} if dynamic.name else {}
    data["inputs"] = [name if d == 0 else [name, d] for name, d in places]
    return {**data, "representative": dynamic.representative}


def _input_to_json(tensor: Buffer, workload: Workload) -> dict[str, object]:
    data: dict[str, object] = {"name": tensor.name, "dtype": tensor.dtype.name, "shape": list(tensor.shape)}
    if tensor.name in workload.constants:
        data["constant"] = True
    skew = dict(workload.skews).get(tensor.name)
    return data if skew is None else {**data, "skew": skew}


def _stage_to_json(stage: Stage) -> dict[str, object]:
    data: dict[str, object] = {
        "name": stage.name,
        "dtype": stage.tensor.dtype.name,
        "axes": [{"name": a.name, "extent": a.extent} for a in stage.axes],
        "body": _expr_to_json(stage.body),
    }
    if stage.reducer is not None:
        data["reducer"] = str(stage.reducer)
        data["reduce_axes"] = [{"name": a.name, "extent": a.extent} for a in stage.reduce_axes]
    return data


def _expr_to_json(e: Expr) -> dict[str, object]:
    match e:
        case Var(name=name):
            return {"axis": name}
        case Const(value=value, type=dtype):
            infinite = isinstance(value, float) and value in (float("inf"), float("-inf"))
            return {"const": str(value) if infinite else value, "dtype": dtype.name}
        case Load(buffer=buffer, indices=indices):
            places = zip(indices, buffer.shape, strict=True)
            return {"load": buffer.name, "at": [_index_to_json(i, extent) for i, extent in places]}
        case Cast(value=value, type=dtype):
            return {"op": "cast", "args": [_expr_to_json(value)], "dtype": dtype.name}
        case Select():
            return {"op": "select", "args": [_expr_to_json(c) for c in e.children]}
        case Binary(op=op) | Compare(op=op) | Logic(op=op) | Unary(op=op):
            return {"op": str(op), "args": [_expr_to_json(c) for c in e.children]}
    raise InvalidWorkload(f"{type(e).__name__} has no place in a tensor expression")


def _index_to_json(e: Expr, extent: int) -> object:
    loaded = loaded_index(e, extent)
    if loaded is not None:
        return {"within": _expr_to_json(loaded)}
    found = index_of(e)
    if found is None:
        raise InvalidWorkload("this is no index")
    return _index_form(found)


def _index_form(found: Index) -> object:
    affine = found.affine
    if found.parts:
        parts = [
            {"op": str(p.op), "of": _index_form(p.of), "by": p.divisor, "times": times} for p, times in found.parts
        ]
        return {"terms": affine.coefficients, "constant": affine.constant, "parts": parts}
    if affine.is_constant:
        return affine.constant
    if affine.constant == 0 and list(affine.coefficients.values()) == [1]:
        return affine.variables[0]
    return {"terms": affine.coefficients, "constant": affine.constant}


def workload_from_json(data: object) -> Workload:
    """Return the checked workload that ``data`` (JSON values as Python's ``json`` gives them) describes.

    Raises InvalidWorkload, and nothing else, for whatever is no legal workload; its ``field`` is a JSON pointer,
    ``/`` standing for the whole when no part is to blame.
    """
    if isinstance(data, dict) and data.get("kind") == KIND:
        return triton_workload(triton_from_json(data))
    top = object_of(data, "/", "", ("inputs", "stages", "outputs"), ("precision", "dynamic"))
    found = list_of(top["inputs"], "/inputs", MAX_TENSORS, _input)
    inputs = [t for t, _, _ in found]
    tensors = {t.name: t for t in inputs}
    raw_stages = list_of(top["stages"], "/stages", MAX_TENSORS, lambda s, _: s)
    stages = []
    for n, raw in enumerate(raw_stages):
        stage = _stage(raw, f"/stages/{n}", tensors)
        tensors.setdefault(stage.name, stage.tensor)
        stages.append(stage)
    outputs = list_of(top["outputs"], "/outputs", MAX_TENSORS, string_of)
    constants = frozenset(t.name for t, is_constant, _ in found if is_constant)
    skews = frozenset((t.name, skew) for t, _, skew in found if skew is not None)
    precision = string_of(top.get("precision", IEEE), "/precision")
    dynamic = _all_dynamic(top["dynamic"]) if "dynamic" in top else ()
    return check(Workload(tuple(inputs), tuple(stages), tuple(outputs), constants, precision, skews, dynamic))


def _all_dynamic(data: object) -> tuple[DynamicDimension, ...]:
    if isinstance(data, list) and data:
        return tuple(list_of(data, "/dynamic", MAX_RANK, _dynamic))
    return (_dynamic(data, "/dynamic"),)


def _dynamic(data: object, field: str) -> DynamicDimension:
    d = object_of(data, field, field, ("inputs", "representative"), ("name",))
    places = list_of(d["inputs"], f"{field}/inputs", MAX_TENSORS, _place)
    name = string_of(d["name"], f"{field}/name") if "name" in d else ""
    return DynamicDimension(frozenset(places), integer_of(d["representative"], f"{field}/representative"), name)


def _place(data: object, field: str) -> tuple[str, int]:
    """Return an input, whose first dimension is meant, or an input and a dimension."""
    if not isinstance(data, list):
        return string_of(data, field), 0
    if len(data) != 2:
        raise InvalidWorkload(f"{len(data)} elements; allowed: an input and a dimension", field=field)
    return string_of(data[0], f"{field}/0"), integer_of(data[1], f"{field}/1")


def _input(data: object, field: str) -> tuple[Buffer, bool, float | None]:
    """Return an input, whether it is constant, and its skew if it has one."""
    d = object_of(data, field, field, ("name", "dtype", "shape"), ("constant", "skew"))
    shape = list_of(d["shape"], f"{field}/shape", MAX_RANK, integer_of)
    dtype = member_of(d["dtype"], INPUT_DTYPES, f"{field}/dtype", "dtype")
    buffer = Buffer(string_of(d["name"], f"{field}/name"), tuple(shape), dtype)
    constant = d.get("constant", False)
    if not isinstance(constant, bool):
        raise InvalidWorkload(f"expected true or false, given {given_words(constant)}", field=f"{field}/constant")
    skew = d.get("skew")
    if skew is None:
        return buffer, constant, None
    if isinstance(skew, bool) or not isinstance(skew, int | float) or not 0 < skew <= MAX_SKEW:
        raise InvalidWorkload(f"a skew is above 0 and at most {MAX_SKEW}", field=f"{field}/skew")
    return buffer, constant, float(skew)


def _stage(data: object, field: str, tensors: Mapping[str, Buffer]) -> Stage:
    d = object_of(data, field, field, ("name", "dtype", "axes", "body"), ("reducer", "reduce_axes"))
    axes = list_of(d["axes"], f"{field}/axes", MAX_RANK, _axis)
    reduce_axes = list_of(d.get("reduce_axes", []), f"{field}/reduce_axes", MAX_RANK, _axis)
    reducer = None
    if "reducer" in d:
        reducer = member_of(d["reducer"], {str(r): r for r in Reducer}, f"{field}/reducer", "reducer")
    name = string_of(d["name"], f"{field}/name")
    reader = _ExprReader(tensors, [a.name for a in (*axes, *reduce_axes)])
    body = reader.expr(d["body"], f"{field}/body", 1)
    tensor = Buffer(name, tuple(a.extent for a in axes), _dtype(d["dtype"], f"{field}/dtype"))
    return Stage(tensor, tuple(axes), body, tuple(reduce_axes), reducer)


def _axis(data: object, field: str) -> Axis:
    d = object_of(data, field, field, ("name", "extent"))
    return Axis(string_of(d["name"], f"{field}/name"), integer_of(d["extent"], f"{field}/extent"))


@dataclass(slots=True)
class _ExprReader:
    """It reads the expressions of one stage and counts their nodes, so that no description is walked beyond the
    bounds."""

    tensors: Mapping[str, Buffer]
    axes: list[str]
    nodes: int = 0

    def expr(self, data: object, field: str, depth: int) -> Expr:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise InvalidWorkload(f"expression with more than {MAX_NODES} nodes", field=field)
        if depth > MAX_DEPTH:
            raise InvalidWorkload(f"expression nested deeper than {MAX_DEPTH}", field=field)
        if not isinstance(data, dict):
            raise InvalidWorkload(f"an expression is an object, not {given_words(data)}", field=field)
        for member, read in (
            ("op", self._operation),
            ("load", self._load),
            ("axis", self._var),
            ("const", self._const),
        ):
            if member in data:
                return read(data, field, depth)
        raise InvalidWorkload("an expression has one of op, load, axis, const", field=field)

    def _operation(self, data: dict[str, object], field: str, depth: int) -> Expr:
        op = data["op"]
        count = member_of(op, _OPERANDS, f"{field}/op", "operation")
        d = object_of(data, field, field, ("op", "args", "dtype") if op == "cast" else ("op", "args"))
        given = list_of(d["args"], f"{field}/args", 3, lambda a, _: a)
        if len(given) != count:
            raise InvalidWorkload(f"{op} takes {count} operands, given {len(given)}", field=f"{field}/args")
        args = []
        for n, a in enumerate(given):  # a plain loop: every frame per level counts at full depth
            args.append(self.expr(a, f"{field}/args/{n}", depth + 1))
        name = str(op)
        if name == "select":
            return Select(*args)
        if name == "cast":
            return Cast(args[0], _dtype(d["dtype"], f"{field}/dtype"))
        if name in _BINARY:
            return Binary(_BINARY[name], *args)
        if name in _COMPARE:
            return Compare(_COMPARE[name], *args)
        return Logic(_LOGIC[name], *args) if name in _LOGIC else Unary(_UNARY[name], *args)

    def _load(self, data: dict[str, object], field: str, depth: int) -> Expr:
        d = object_of(data, field, field, ("load", "at"))
        name = string_of(d["load"], f"{field}/load")
        tensor = self.tensors.get(name)
        if tensor is None:
            said = given_words(name)
            raise InvalidWorkload(f"{said} is neither an input nor an earlier stage", field=f"{field}/load")
        given = list_of(d["at"], f"{field}/at", MAX_RANK, lambda i, _: i)
        if len(given) != len(tensor.shape):
            raise InvalidWorkload(
                f"{name} has {len(tensor.shape)} dimensions but is read at {len(given)} indices", field=f"{field}/at"
            )
        indices = []
        for n, i in enumerate(given):
            if isinstance(i, dict) and "within" in i:
                inner = object_of(i, f"{field}/at/{n}", f"{field}/at/{n}", ("within",))["within"]
                loaded = self.expr(inner, f"{field}/at/{n}/within", depth + 1)
                if not loaded.dtype.is_integer:
                    at = f"{field}/at/{n}/within"
                    raise InvalidWorkload(f"an index of {loaded.dtype}; allowed: integers", field=at)
                indices.append(within(loaded, tensor.shape[n]))
            else:
                indices.append(self._index(i, f"{field}/at/{n}"))
        return Load(tensor, tuple(indices))

    def _var(self, data: dict[str, object], field: str, depth: int) -> Expr:
        return Var(string_of(object_of(data, field, field, ("axis",))["axis"], f"{field}/axis"))

    def _const(self, data: dict[str, object], field: str, depth: int) -> Expr:
        d = object_of(data, field, field, ("const", "dtype"))
        dtype = _dtype(d["dtype"], f"{field}/dtype")
        return Const(_number(d["const"], dtype, f"{field}/const"), dtype)

    def _index(self, data: object, field: str) -> Expr:
        return self._index_parts(data, field, 1).expr(self.axes)

    def _index_parts(self, data: object, field: str, depth: int) -> Index:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_RANK:
            raise InvalidWorkload(f"an index nested deeper than {MAX_RANK}, or too large", field=field)
        parts: list[Index] = []
        if isinstance(data, str):
            affine = LinearForm({Var(data): 1})
        elif isinstance(data, int) and not isinstance(data, bool):
            affine = LinearForm({}, data)
        else:
            d = object_of(data, field, field, ("terms", "constant"), ("parts",))
            terms = d["terms"]
            if not isinstance(terms, dict):
                raise InvalidWorkload(f"terms are an object, not {given_words(terms)}", field=f"{field}/terms")
            given = {str(n): integer_of(c, f"{field}/terms") for n, c in terms.items()}
            affine = LinearForm(
                {Var(n): c for n, c in given.items() if c}, integer_of(d["constant"], f"{field}/constant")
            )
            raw = list_of(d.get("parts", []), f"{field}/parts", MAX_RANK, lambda part, _: part)
            parts = [self._part(part, f"{field}/parts/{n}", depth) for n, part in enumerate(raw)]
        for number in (affine.constant, *affine.coefficients.values()):
            if abs(number) > MAX_COEFFICIENT:
                raise InvalidWorkload(f"a number beyond {MAX_COEFFICIENT} in an index", field=field)
        for name in sorted(a.name for a in affine.terms if isinstance(a, Var)):
            if name not in self.axes:
                raise InvalidWorkload(f"{given_words(name)} is no axis of this stage", field=field)
        total = Index(affine)
        for part in parts:
            total = total.plus(part)
        return total

    def _part(self, data: object, field: str, depth: int) -> Index:
        d = object_of(data, field, field, ("op", "of", "by", "times"))
        op = member_of(d["op"], _PARTS, f"{field}/op", "part of an index")
        by, times = integer_of(d["by"], f"{field}/by"), integer_of(d["times"], f"{field}/times")
        if not 1 <= by <= MAX_COEFFICIENT:
            raise InvalidWorkload(f"{given_words(by)}; allowed: 1 to {MAX_COEFFICIENT}", field=f"{field}/by")
        if abs(times) > MAX_COEFFICIENT:
            raise InvalidWorkload(f"a number beyond {MAX_COEFFICIENT} in an index", field=f"{field}/times")
        of = self._index_parts(d["of"], f"{field}/of", depth + 1)
        return Index(LinearForm({})).plus(part_of(op, of, by), times)


def _number(value: object, dtype: DType, field: str) -> int | float | bool:
    if dtype.is_float and value in ("inf", "-inf"):
        return float(str(value))
    if isinstance(value, bool) != dtype.is_bool or not isinstance(value, int | float):
        raise InvalidWorkload(f"{given_words(value)} is no {dtype}", field=field)
    if not dtype.is_float:
        return value  # check() refuses fractions and what does not fit
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if number - number != 0:
        raise InvalidWorkload(f'a number beyond {dtype}; infinities are written "inf" and "-inf"', field=field)
    return number


def _dtype(value: object, field: str) -> DType:
    return member_of(value, DTYPES, field, "dtype")
