"""An operator: a family of workloads told apart by parameters, with the plain NumPy form it is compared to."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DTYPES, DType, float32, int32
from ...core.errors import InvalidParameter, InvalidWorkload
from ...core.precision import IEEE, PRECISIONS
from ..workload import Workload
from .parameter import Choice, Flag, Parameter, Values, shown


@dataclass(frozen=True, slots=True)
class Operator:
    """``build`` makes the workload and ``baseline`` computes its outputs with NumPy, both from checked values.

    The baseline is the fastest form that plain NumPy has, in the inputs' dtype (half floats widened to float32,
    which is faster): what tuned kernels are measured against. It agrees with the reference within the tolerance.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    build: Callable[[Values], Workload]
    baseline: Callable[[Values, Mapping[str, NDArray[Any]]], tuple[NDArray[Any], ...]]
    examples: tuple[Mapping[str, object], ...]
    """Small cases with odd extents (1, primes), legal for every dtype unless they name one."""

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema (2020-12) of the parameters; closed. What depends on several of them, ``workload``
        checks."""
        return {
            "type": "object",
            "properties": {p.name: p.schema() for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            "additionalProperties": False,
            "examples": [dict(e) for e in self.examples],
        }

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types that the parameter ``dtype`` allows."""
        for p in self.parameters:
            if p.name == "dtype" and isinstance(p.domain, Choice):
                return p.domain.words
        return ()

    def cases(self) -> Iterator[dict[str, object]]:
        """Yield every example with every dtype it may have: what the tests of values run an operator on."""
        for example in self.examples:
            for dtype in [example["dtype"]] if "dtype" in example else self.dtypes:
                yield {**example, "dtype": dtype}

    def few_cases(self) -> Iterator[dict[str, object]]:
        """Yield some of ``cases``: every example and every dtype at least once. For tests that cannot run all of
        them."""
        free = [e for e in self.examples if "dtype" not in e]
        for n in range(max(len(free), len(self.dtypes)) if free else 0):
            yield {**free[n % len(free)], "dtype": self.dtypes[n % len(self.dtypes)]}
        yield from (dict(e) for e in self.examples if "dtype" in e)

    def values(self, parameters: Mapping[str, object]) -> Values:
        """Return all parameters, defaults filled in; raises InvalidParameter naming the first that is wrong."""
        names = [p.name for p in self.parameters]
        for name in parameters:
            if name not in names:
                raise InvalidParameter(
                    f"{self.name} has no parameter {shown(name)}; it has {', '.join(names)}",
                    field=ascii(name)[1:-1] or "parameters",
                )
        return Values({p.name: p.read(parameters) for p in self.parameters})

    def workload(self, parameters: Mapping[str, object]) -> Workload:
        """Return the workload of these parameters. Raises InvalidParameter that names the parameter, or the first
        extent when together they make a tensor beyond the limits of ``te.limits``."""
        values = self.values(parameters)
        try:
            return self.build(values)
        except InvalidWorkload as error:
            raise InvalidParameter(
                f"{self.name} with these parameters is no legal workload: {error.message}",
                field=self.parameters[0].name,
            ) from error

    def numpy(self, parameters: Mapping[str, object], inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        """Return the outputs by plain NumPy, in the order and dtypes of the workload's; raises like ``workload``."""
        with np.errstate(all="ignore"):
            return self.baseline(self.values(parameters), inputs)


def constant_parameter(name: str) -> Parameter:
    """Return the parameter ``constant_weights`` of an operator whose input ``name`` is weights."""
    meaning = f"whether {name} stays the same from call to call, so that a copy of it in another order may be kept"
    return Parameter("constant_weights", meaning, Flag(), False)


def precision_parameter(*names: str) -> Parameter:
    """Return the parameter ``precision`` of an operator with sums of products."""
    meanings = "; ".join(f"{name}: {PRECISIONS[name].meaning}" for name in names)
    return Parameter("precision", f"which roundings its sums may have ({meanings})", Choice(names), IEEE)


def accumulation_parameter(*names: str) -> Parameter:
    """Return the parameter ``accumulate`` of an operator that sums."""
    meaning = "what sums are kept in: auto is float32 for 16-bit floats, int32 for 8-bit integers, else dtype itself"
    return Parameter("accumulate", meaning, Choice(("auto", *names)), "auto")


def accumulation(v: Values) -> tuple[DType, DType]:
    """Return what sums are kept in, by the parameters ``dtype`` and ``accumulate``, and what they are returned in:
    integers as accumulated, floats as given. Raises InvalidParameter where that is of another kind or narrower than the
    dtype."""
    given, chosen = DTYPES[v.text("dtype")], v.text("accumulate")
    if chosen == "auto":
        return accumulator(given), result_dtype(given)
    wide = DTYPES[chosen]
    if wide.is_float != given.is_float or wide.bits < given.bits:
        kind = "float" if given.is_float else "int"
        allowed = [d.name for d in DTYPES.values() if d.kind == kind and d.bits >= max(32, given.bits)]
        raise InvalidParameter(
            f"accumulate is {chosen}; allowed for {given}: auto, {', '.join(allowed)}", field="accumulate"
        )
    return wide, given if given.is_float else wide


def accumulator(dtype: str | DType) -> DType:
    """Return what sums of ``dtype`` are kept in: float32 for the half floats, int32 for the 8-bit integers, else
    itself."""
    d = DTYPES[dtype] if isinstance(dtype, str) else dtype
    if d.bits >= 32 or d.is_bool:
        return d
    return float32 if d.is_float else int32


def result_dtype(dtype: str | DType) -> DType:
    """Return what sums of ``dtype`` are returned in: integers as accumulated (8 bits would wrap), floats as given."""
    d = DTYPES[dtype] if isinstance(dtype, str) else dtype
    return accumulator(d) if d.is_integer else d


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Half floats as float32, anything else as it is: what NumPy computes fast in."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array
