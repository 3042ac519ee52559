"""Makes the workload of one call of a Triton kernel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton.runtime.autotuner import Config, Heuristics
from triton.runtime.jit import JITFunction

from ..core.dtypes import INPUT_DTYPES
from ..core.errors import InvalidWorkload
from ..te.json import workload_from_json
from ..te.triton import OPTIONS, TritonWorkload
from ..te.triton_access import written_parameters
from ..te.triton_json import KIND, SCALARS
from .source import UnsupportedKernel, dtype_constant, kernel_source, triton_version


@dataclass(frozen=True)
class KernelFunction:
    """A function under ``triton.jit``, with the heuristics between it and the autotuner, and its text."""

    function: JITFunction[Any]
    heuristics: tuple[Mapping[str, Callable[[Mapping[str, Any]], Any]], ...]
    source: str
    writes: frozenset[str]

    @classmethod
    def of(cls, decorated: Any, writes: Sequence[str]) -> "KernelFunction":
        """Raises UnsupportedKernel where something else than heuristics stands between."""
        heuristics = []
        while isinstance(decorated, Heuristics):
            heuristics.append(decorated.values)
            decorated = decorated.fn
        if not isinstance(decorated, JITFunction):
            raise UnsupportedKernel(f"a {type(decorated).__name__} is tuned; allowed: triton.jit, triton.heuristics")
        source = kernel_source(decorated)
        written = frozenset(writes) | written_parameters(source, decorated.fn.__name__)
        return cls(decorated, tuple(heuristics), source, written)


@dataclass(frozen=True)
class CallTraits:
    """What the decorator says of all calls: the names of ``key``, those of pointers that are 0 before a launch, and the
    ranges of whole numbers that pointers hold."""

    key: tuple[str, ...]
    zero: frozenset[str]
    ranges: Mapping[str, tuple[int, int]]


def call_workload(
    kernel: KernelFunction,
    traits: CallTraits,
    configs: Sequence[Config],
    named: Mapping[str, Any],
    grid: Any,
) -> TritonWorkload:
    """Return the workload of a call with arguments ``named``. The configurations are those of ``configs``, in their
    order. Raises InvalidWorkload, mostly UnsupportedKernel, for what the service cannot take."""
    parameters = kernel.function.params
    unknown = sorted(set(named) - {p.name for p in parameters})
    if unknown:
        raise UnsupportedKernel(f"the call has the option {unknown[0]}; allowed: the kernel's parameters")
    rows = [_row(kernel, config, named) for config in configs]
    names = sorted({name for row in rows for name in row})
    varied = [{name: _constant(name, row.get(name)) for name in names} for row in rows]
    if any(set(row) | set(OPTIONS) != set(names) | set(OPTIONS) for row in rows):
        raise UnsupportedKernel(f"all configurations need the same names: {', '.join(names)}")
    arguments, constants = [], {}
    defaults = {p.name: p.default for p in parameters if p.has_default}
    for p in parameters:
        if p.name in names:
            continue
        if p.name not in named and p.name not in defaults:
            raise UnsupportedKernel(f"the call gives no {p.name}")
        value = named.get(p.name, defaults.get(p.name))
        if p.is_constexpr or value is None:
            constants[p.name] = _constant(p.name, value)
        else:
            arguments.append(_argument(p, value, kernel.writes, traits))
    bound = {**defaults, **named}
    data = {
        "kind": KIND,
        "version": triton_version(),
        "source": kernel.source,
        "name": kernel.function.fn.__name__,
        "arguments": arguments,
        "constants": constants,
        "configurations": varied,
        "grids": [_blocks(grid, {**bound, **row}) for row in rows],
    }
    workload = workload_from_json(data)
    assert isinstance(workload, TritonWorkload)
    return workload


def _row(kernel: KernelFunction, config: Config, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration says, with the heuristics that follow from it."""
    if config.pre_hook is not None:
        raise UnsupportedKernel("a configuration has a pre_hook, which is code of this process")
    row = dict(config.all_kwargs())
    if "ir_override" in row:
        raise UnsupportedKernel("a configuration has an ir_override, which is a file of this process")
    for values in kernel.heuristics:
        for name, rule in values.items():
            row[name] = rule({**named, **row})
    return row


def _blocks(grid: Any, meta: Mapping[str, Any]) -> list[int]:
    found = grid(meta) if callable(grid) else grid
    return [int(n) for n in (found if isinstance(found, Sequence) else (found,))]


def _constant(name: str, value: Any) -> Any:
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, tl.dtype):
        return dtype_constant(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedKernel(
        f"the constant {name} is a {type(value).__name__}; allowed: numbers, texts, dtypes of Triton"
    )


def _argument(parameter: Any, value: Any, writes: frozenset[str], traits: CallTraits) -> dict[str, Any]:
    name = parameter.name
    specialised = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
    if hasattr(value, "data_ptr"):
        data: dict[str, Any] = {"pointer": name, "dtype": _dtype(name, value), "elements": _elements(name, value)}
        data["access"] = "write" if name in writes else "read"
        data |= {"zero": True} if name in traits.zero else {}
        data |= {"range": list(traits.ranges[name])} if name in traits.ranges else {}
        return data | ({} if specialised and value.data_ptr() % 16 == 0 else {"aligned": False})
    if not isinstance(value, bool | int | float):
        raise UnsupportedKernel(f"{name} is a {type(value).__name__}; allowed: tensors, numbers, constants")
    kind = parameter.annotation_type or _scalar_type(value)
    if kind not in SCALARS:
        raise UnsupportedKernel(f"{name} is a {kind}; allowed: {', '.join(SCALARS)}")
    data = {"scalar": name, "type": kind, "value": float(value) if kind[0] == "f" else int(value)}
    data |= {} if name in traits.key else {"in_key": False}
    return data | ({} if specialised else {"specialised": False})


def _scalar_type(value: bool | int | float) -> str:
    """Return the type that Triton gives a number of Python."""
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, float):
        return "fp32"
    if -(1 << 31) <= value < 1 << 31:
        return "i32"
    return "i64" if value < 1 << 63 else "u64"


def _dtype(name: str, tensor: Any) -> str:
    found = str(tensor.dtype).rpartition(".")[2]
    if found not in INPUT_DTYPES:
        raise UnsupportedKernel(f"{name} is a tensor of {found}; allowed: {', '.join(INPUT_DTYPES)}")
    return found


def _elements(name: str, tensor: Any) -> int:
    """Return how many elements lie from the first to the last that the tensor has."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if 0 in shape:
        raise InvalidWorkload(f"{name} is empty", field="/arguments")
    return 1 + sum((int(extent) - 1) * int(stride) for extent, stride in zip(shape, strides, strict=True))
