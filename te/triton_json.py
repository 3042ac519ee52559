"""Workloads of Triton kernels as JSON, both ways. The form is closed and bounded.

    {"kind": "triton", "version": "3.6.0", "source": "import triton\\n...", "name": "add",
     "arguments": [{"pointer": "x", "dtype": "float32", "elements": 4096, "access": "read"},
                   {"pointer": "y", "dtype": "float32", "elements": 4096, "access": "write"},
                   {"scalar": "n", "type": "i32", "value": 4096}],
     "constants": {"ACTIVATION": "relu"},
     "grid": ["cdiv(n, BLOCK)"],
     "configurations": [{"BLOCK": 128, "num_warps": 4}, {"BLOCK": 256, "num_warps": 8}]}

``configurations`` is a list, or an object of lists whose combinations they are: ``{"BLOCK": [128, 256], "num_warps":
[4, 8]}``. ``grids``, a list of three numbers for each configuration of a list, may stand for ``grid``. A pointer may
have ``"zero": true``, ``"range": [low, high]`` and ``"aligned": false``; a scalar ``"in_key": false`` and
``"specialised": false``.
"""

import ast
import math
import re
from collections.abc import Mapping
from typing import TypeVar

from ..core.dtypes import INPUT_DTYPES
from ..core.errors import InvalidWorkload
from ..core.keys import content_key
from .grid import grid_names
from .json_fields import given_words, integer_of, list_of, member_of, object_of, pointer_step, string_of
from .limits import MAX_ELEMENTS, NAME_PATTERN
from .triton import (
    OPTIONS,
    PointerAccess,
    TritonConfigurations,
    TritonKernel,
    TritonPointer,
    TritonScalar,
    Value,
    checked_blocks,
)

T = TypeVar("T")

KIND = "triton"
MAX_SOURCE = 1 << 16
"""How many characters the source may have."""
MAX_ARGUMENTS = 128
MAX_CONFIGURATIONS = 4096
MAX_VALUES = 64
"""How many values a range may have."""
MAX_TEXT = 256
"""How many characters a constant may have that is a text."""
SCALARS: dict[str, tuple[int, int] | None] = {
    "i32": (-(1 << 31), (1 << 31) - 1),
    "i64": (-(1 << 63), (1 << 63) - 1),
    "u32": (0, (1 << 32) - 1),
    "u64": (0, (1 << 64) - 1),
    "u1": (0, 1),
    "fp32": None,
    "fp64": None,
}
"""The types of number arguments with what they hold; None for floats."""
_OPTION_VALUES: dict[str, tuple[Value, ...]] = {
    "num_warps": (1, 2, 4, 8, 16, 32),
    "num_stages": tuple(range(17)),
    "num_ctas": (1, 2, 4, 8, 16),
    "maxnreg": (None, *range(16, 256)),
}
_NAME = re.compile(NAME_PATTERN[:-1] + r"\Z")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,31}\Z")


def triton_to_json(kernel: TritonKernel) -> dict[str, object]:
    """``kernel`` as JSON values. A checked kernel comes back equal from ``triton_from_json``."""
    found = kernel.configurations
    configurations: object = {name: list(values) for name, values in zip(found.names, found.values, strict=True)}
    if found.rows is not None:
        configurations = [
            {name: values[place] for name, values, place in zip(found.names, found.values, row, strict=True)}
            for row in found.rows
        ]
    blocks: dict[str, object] = {"grids": [list(g) for g in kernel.grids]} if kernel.grids else {}
    return {
        "kind": KIND,
        "version": kernel.version,
        "source": kernel.source,
        "name": kernel.name,
        "arguments": [_argument_to_json(a) for a in kernel.arguments],
        "constants": dict(kernel.constants),
        "configurations": configurations,
        **(blocks or {"grid": list(kernel.grid)}),
    }


def triton_key(kernel: TritonKernel) -> str:
    """Return the content key of a kernel's workload. Sizes of memory, grids of single configurations, and the values of
    arguments that are not ``in_key`` are no part of it."""
    data = triton_to_json(kernel)
    data.pop("grids", None)
    data["arguments"] = [_argument_in_key(a) for a in kernel.arguments]
    return content_key(data)


def _argument_in_key(argument: TritonPointer | TritonScalar) -> dict[str, object]:
    data = _argument_to_json(argument)
    if isinstance(argument, TritonPointer):
        del data["elements"]
    elif not argument.in_key:
        data["value"] = {"is_one": argument.is_one, "is_divisible": argument.is_divisible}
    return data


def _argument_to_json(argument: TritonPointer | TritonScalar) -> dict[str, object]:
    if isinstance(argument, TritonScalar):
        data: dict[str, object] = {"scalar": argument.name, "type": argument.type, "value": argument.value}
        data |= {} if argument.in_key else {"in_key": False}
        return data | ({} if argument.specialised else {"specialised": False})
    data = {"pointer": argument.name, "dtype": argument.dtype.name, "elements": argument.elements}
    data["access"] = argument.access.value
    data |= {"zero": True} if argument.zero else {}
    data |= {} if argument.low is None else {"range": [argument.low, argument.high]}
    return data | ({} if argument.aligned else {"aligned": False})


def triton_from_json(data: object) -> TritonKernel:
    """Return the checked kernel that ``data`` describes. Raises InvalidWorkload, and nothing else."""
    required = ("kind", "version", "source", "name", "arguments", "constants", "configurations")
    top = object_of(data, "/", "", required, ("grid", "grids"))
    version = string_of(top["version"], "/version")
    if not _VERSION.match(version):
        raise InvalidWorkload(f"{given_words(version)} is no version of Triton, such as 3.6.0", field="/version")
    source, name = string_of(top["source"], "/source"), _name(top["name"], "/name")
    parameters = _parameters(source, name)
    arguments = tuple(list_of(top["arguments"], "/arguments", MAX_ARGUMENTS, _argument))
    constants = _constants(top["constants"], "/constants")
    configurations = _configurations(top["configurations"])
    _check_parameters(parameters, arguments, constants, configurations)
    pointers = [a for a in arguments if isinstance(a, TritonPointer)]
    if all(p.access is PointerAccess.READ for p in pointers):
        raise InvalidWorkload("the kernel writes nothing; needed: a pointer of access write", field="/arguments")
    grid, grids = _grid(top, arguments, constants, configurations)
    return TritonKernel(version, source, name, arguments, tuple(constants.items()), configurations, grid, grids)


def _parameters(source: str, name: str) -> list[str]:
    """Return the parameters of the kernel. Only imports of Triton, constants and functions may stand beside it, so that
    nothing else is run when the module is loaded."""
    if len(source) > MAX_SOURCE:
        raise InvalidWorkload(f"{len(source)} characters; allowed: at most {MAX_SOURCE}", field="/source")
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidWorkload(f"the source is no Python: {error}", field="/source") from None
    for statement in module.body:
        _check_statement(statement)
    functions = {s.name: s for s in module.body if isinstance(s, ast.FunctionDef)}
    if name not in functions:
        given = ", ".join(functions)[:200] or "none"
        raise InvalidWorkload(f"the source has no function {name}; it has: {given}", field="/name")
    a = functions[name].args
    if a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs:
        raise InvalidWorkload("a kernel has plain parameters only", field="/source")
    return [p.arg for p in a.args]


def _check_statement(statement: ast.stmt) -> None:
    match statement:
        case ast.Import(names=names) if all(_of_triton(n.name) for n in names):
            return
        case ast.ImportFrom(module=str() as module, level=0) if _of_triton(module):
            return
        case ast.Assign(targets=[ast.Name()], value=value) if _is_constant(value):
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.FunctionDef(decorator_list=[decorator]) if ast.unparse(decorator).split("(")[0] == "triton.jit":
            given = decorator.keywords if isinstance(decorator, ast.Call) else []
            positional = decorator.args if isinstance(decorator, ast.Call) else []
            a = statement.args
            defaults = [d for d in (*a.defaults, *a.kw_defaults) if d is not None]
            annotations = [p.annotation for p in (*a.args, *a.kwonlyargs) if p.annotation is not None]
            values = [*positional, *defaults, *(k.value for k in given)]
            returned = [] if statement.returns is None else [statement.returns]
            if all(_is_constant(v) for v in values) and all(_is_plain(x) for x in (*annotations, *returned)):
                return
    line = ast.unparse(statement).partition("\n")[0][:80]
    allowed = "imports of triton, constants, and functions under @triton.jit with constant defaults"
    raise InvalidWorkload(f"line {statement.lineno}, {line!r}; allowed: {allowed}", field="/source")


def _of_triton(module: str) -> bool:
    return module == "triton.language" or module.startswith("triton.language.") or module == "triton"


def _is_constant(node: ast.expr) -> bool:
    """Return whether it is a literal, an attribute of a module, or ``tl.constexpr`` of one."""
    if isinstance(node, ast.Call):
        whole = [*node.args, *(k.value for k in node.keywords)]
        return ast.unparse(node.func) in ("tl.constexpr", "triton.language.constexpr") and all(
            _is_constant(v) for v in whole
        )
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_constant(e) for e in node.elts)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_constant(node.operand)
    return _is_plain(node)


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Name) or (isinstance(node, ast.Attribute) and _is_plain(node.value))


def _name(data: object, field: str) -> str:
    found = string_of(data, field)
    if not _NAME.match(found):
        raise InvalidWorkload(f"{given_words(found)} is no name; allowed: {NAME_PATTERN}", field=field)
    return found


def _argument(data: object, field: str) -> TritonPointer | TritonScalar:
    if isinstance(data, dict) and "pointer" in data:
        return _pointer(data, field)
    d = object_of(data, field, field, ("scalar", "type", "value"), ("in_key", "specialised"))
    kind = string_of(d["type"], f"{field}/type")
    if kind not in SCALARS:
        allowed = ", ".join(SCALARS)
        more = "; descriptors of TMA are made in the kernel instead" if kind.startswith("tensordesc") else ""
        raise InvalidWorkload(
            f"{given_words(kind)} is no type of a number; allowed: {allowed}{more}", field=f"{field}/type"
        )
    value, bounds = d["value"], SCALARS[kind]
    if bounds is None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidWorkload(f"{given_words(value)} is no finite number", field=f"{field}/value")
        value = float(value)
    else:
        value = integer_of(int(value) if kind == "u1" and isinstance(value, bool) else value, f"{field}/value")
        if not bounds[0] <= value <= bounds[1]:
            raise InvalidWorkload(f"{given_words(value)} is no {kind}", field=f"{field}/value")
    flags = [_flag(d, name, field, True) for name in ("in_key", "specialised")]
    return TritonScalar(_name(d["scalar"], f"{field}/scalar"), kind, value, *flags)


def _pointer(data: object, field: str) -> TritonPointer:
    d = object_of(data, field, field, ("pointer", "dtype", "elements", "access"), ("zero", "range", "aligned"))
    dtype = member_of(d["dtype"], INPUT_DTYPES, f"{field}/dtype", "dtype")
    elements = integer_of(d["elements"], f"{field}/elements")
    if not 1 <= elements < MAX_ELEMENTS:
        raise InvalidWorkload(f"{elements} elements; allowed: 1 to {MAX_ELEMENTS - 1}", field=f"{field}/elements")
    access = member_of(d["access"], {a.value: a for a in PointerAccess}, f"{field}/access", "access")
    if access is not PointerAccess.READ and dtype.is_float8:
        raise InvalidWorkload(f"a kernel that writes {dtype} is not measured", field=f"{field}/dtype")
    low = high = None
    if "range" in d:
        bounds = list_of(d["range"], f"{field}/range", 2, integer_of)
        if len(bounds) != 2 or not dtype.is_integer or bounds[0] > bounds[1]:
            raise InvalidWorkload("a range has a low and a high end, of whole numbers", field=f"{field}/range")
        low, high = bounds
        least, most = dtype.integer_range
        if low < least or high > most:
            raise InvalidWorkload(f"{bounds} is beyond {dtype}", field=f"{field}/range")
    zero, aligned = _flag(d, "zero", field, False), _flag(d, "aligned", field, True)
    return TritonPointer(_name(d["pointer"], f"{field}/pointer"), dtype, elements, access, zero, low, high, aligned)


def _flag(data: Mapping[str, object], name: str, field: str, default: bool) -> bool:
    value = data.get(name, default)
    if not isinstance(value, bool):
        raise InvalidWorkload(f"expected true or false, given {given_words(value)}", field=f"{field}/{name}")
    return value


def _constants(data: object, field: str) -> dict[str, Value]:
    if not isinstance(data, dict) or len(data) > MAX_ARGUMENTS:
        raise InvalidWorkload(f"expected an object of at most {MAX_ARGUMENTS} values", field=field)
    for name in data:
        if not _NAME.match(str(name)):
            raise InvalidWorkload(f"{given_words(name)} is no name; allowed: {NAME_PATTERN}", field=field)
    return {str(n): _constant(v, f"{field}/{pointer_step(n)}") for n, v in sorted(data.items())}


def _constant(value: object, field: str) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable():
        return value
    allowed = f"null, true, false, numbers of 64 bits, and texts of at most {MAX_TEXT} printable characters"
    raise InvalidWorkload(f"{given_words(value)} is no constant; allowed: {allowed}", field=field)


def _configurations(data: object) -> TritonConfigurations:
    at = "/configurations"
    if isinstance(data, dict):
        ranges = {n: _values(v, f"{at}/{pointer_step(n)}") for n, v in sorted(data.items())}
        found = TritonConfigurations(tuple(ranges), tuple(ranges.values()))
    else:
        rows = list_of(data, at, MAX_CONFIGURATIONS, _constants)
        if not rows:
            raise InvalidWorkload("no configuration; needed: at least one", field=at)
        names = tuple(rows[0])
        for n, row in enumerate(rows):
            if tuple(row) != names:
                raise InvalidWorkload(f"it has {list(row)}, the first has {list(names)}", field=f"{at}/{n}")
        columns = [_distinct([row[name] for row in rows]) for name in names]
        codes = tuple(tuple(_place(c, row[n]) for c, n in zip(columns, names, strict=True)) for row in rows)
        repeated = next((n for n, code in enumerate(codes) if code in codes[:n]), None)
        if repeated is not None:
            raise InvalidWorkload("it is the same as an earlier one", field=f"{at}/{repeated}")
        found = TritonConfigurations(names, tuple(columns), codes)
    if not 1 <= len(found) <= MAX_CONFIGURATIONS:
        raise InvalidWorkload(f"{len(found)} configurations; allowed: 1 to {MAX_CONFIGURATIONS}", field=at)
    for n, name in enumerate(found.names):
        field = f"{at}/{pointer_step(name)}"
        if not _NAME.match(name):
            raise InvalidWorkload(f"{given_words(name)} is no name; allowed: {NAME_PATTERN}", field=at)
        allowed = _OPTION_VALUES.get(name)
        for value in found.values[n]:
            if allowed is not None and (isinstance(value, bool) or value not in allowed):
                raise InvalidWorkload(
                    f"{name} of {given_words(value)}; allowed: {allowed[0]} to {allowed[-1]}", field=field
                )
        if len(set(found.knob_values(n))) != len(found.values[n]):
            raise InvalidWorkload("two of its values are written alike, such as 1 and '1'", field=field)
    return found


def _values(data: object, field: str) -> tuple[Value, ...]:
    values = list_of(data, field, MAX_VALUES, _constant)
    if not values or len(_distinct(values)) != len(values):
        raise InvalidWorkload("a range has at least one value, each of them once", field=field)
    return tuple(values)


def _distinct(values: list[Value]) -> tuple[Value, ...]:
    found: list[Value] = []
    for value in values:
        if not any(_same(value, other) for other in found):
            found.append(value)
    return tuple(found)


def _place(values: tuple[Value, ...], value: Value) -> int:
    return next(n for n, other in enumerate(values) if _same(value, other))


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other


def _check_parameters(
    parameters: list[str],
    arguments: tuple[TritonPointer | TritonScalar, ...],
    constants: Mapping[str, Value],
    configurations: TritonConfigurations,
) -> None:
    """Each parameter of the kernel is an argument, in order, or a constant, or in every configuration."""
    names = [a.name for a in arguments]
    chosen = [n for n in configurations.names if n not in OPTIONS]
    given = [*names, *constants, *chosen]
    for name in given:
        if name not in parameters:
            raise InvalidWorkload(
                f"the kernel has no parameter {name}; it has {', '.join(parameters)}", field="/arguments"
            )
        if given.count(name) > 1:
            raise InvalidWorkload(f"{name} is given twice", field="/arguments")
    missing = [p for p in parameters if p not in given]
    if missing:
        raise InvalidWorkload(f"the kernel's parameters {', '.join(missing)} are not given", field="/arguments")
    if names != [p for p in parameters if p in names]:
        raise InvalidWorkload("the arguments stand in the order of the kernel's parameters", field="/arguments")


def _grid(
    top: Mapping[str, object],
    arguments: tuple[TritonPointer | TritonScalar, ...],
    constants: Mapping[str, Value],
    configurations: TritonConfigurations,
) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...]]:
    if ("grid" in top) == ("grids" in top):
        raise InvalidWorkload("needed: either grid or grids", field="/grid")
    if "grids" in top:
        rows = list_of(top["grids"], "/grids", MAX_CONFIGURATIONS, lambda g, at: list_of(g, at, 3, integer_of))
        if configurations.rows is None or len(rows) != len(configurations):
            raise InvalidWorkload("there is one grid for each configuration of a list", field="/grids")
        return (), tuple(checked_blocks(row, f"/grids/{n}") for n, row in enumerate(rows))
    texts = tuple(list_of(top["grid"], "/grid", 3, string_of))
    if not texts:
        raise InvalidWorkload("a grid has one to three dimensions", field="/grid")
    scalars = [a.name for a in arguments if isinstance(a, TritonScalar)]
    known = {*scalars, *constants, *configurations.names}
    for n, text in enumerate(texts):
        unknown = sorted(grid_names(text, f"/grid/{n}") - known)
        if unknown:
            raise InvalidWorkload(f"{unknown[0]} is unknown; allowed: {', '.join(sorted(known))}", field=f"/grid/{n}")
    return texts, ()
