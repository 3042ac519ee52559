"""What products and convolutions do with their sums before they store them: bias, residual, activation, rounding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...core.dtypes import DType
from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Tensor, cast, compute, placeholder
from .maps import ACTIVATIONS, MAPS
from .operator import accumulation, widened
from .parameter import Choice, Flag, Parameter, Values


def epilogue_parameters(bias: bool = False, name: str = "B") -> tuple[Parameter, ...]:
    """Return the parameters that ``epilogue_of`` reads; ``bias``: whether there is one by default, ``name``: what it
    is."""
    return (
        Parameter("bias", f"whether {name}, of one element per column (channel) of the result, is added", Flag(), bias),
        Parameter("residual", "whether R, of the result's shape, is added", Flag(), False),
        Parameter("activation", "what is applied last", Choice(ACTIVATIONS), "none"),
    )


@dataclass(frozen=True, slots=True)
class ProductEpilogue:
    """``activation(total + B + R)``, rounded from ``wide`` to ``result``; B and R are of dtype ``result``.
    ``bias_name``: what B is called."""

    bias_name: str
    bias: bool
    residual: bool
    activation: str
    wide: DType
    result: DType

    @property
    def is_nothing(self) -> bool:
        """Whether the sums are the result."""
        return not (self.bias or self.residual) and self.activation == "none" and self.wide == self.result

    def apply(self, total: Tensor, name: str, dims: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the result, called ``name``, and the further inputs; B has the dimensions ``dims`` of ``total``."""
        if self.is_nothing:
            return total, ()
        bias = placeholder([total.shape[d] for d in dims], self.result, self.bias_name) if self.bias else None
        residual = placeholder(total.shape, self.result, "R") if self.residual else None

        def added(*at: Expr) -> Expr:
            e: Expr = total[at]
            if bias is not None:
                e = e + cast(bias[tuple(at[d] for d in dims)], self.wide)
            return e if residual is None else e + cast(residual[at], self.wide)

        value = added
        if (self.bias or self.residual) and self.activation != "none" and MAPS[self.activation].uses > 1:
            biased = compute(total.shape, added, "biased", _names(total))  # used several times: worth a tensor

            def value(*at: Expr) -> Expr:
                return biased[at]

        def body(*at: Expr) -> Expr:
            e = value(*at)
            return cast(e if self.activation == "none" else MAPS[self.activation].expr(e), self.result)

        given = tuple(t for t in (bias, residual) if t is not None)
        return compute(total.shape, body, name, _names(total)), given

    def numpy(self, total: NDArray[Any], inputs: Mapping[str, NDArray[Any]], bias_shape: Sequence[int]) -> NDArray[Any]:
        """Return the same on an array of sums, which is overwritten; ``bias_shape``: what B broadcasts from."""
        if self.bias:
            total += widened(inputs[self.bias_name]).reshape(bias_shape)
        if self.residual:
            total += widened(inputs["R"])
        y = total if self.activation == "none" else MAPS[self.activation].numpy(total)
        return y.astype(self.result.numpy, copy=False)


def epilogue_of(v: Values, bias_name: str = "B") -> ProductEpilogue:
    """As ``epilogue_parameters``, ``dtype`` and ``accumulate`` say; raises InvalidParameter for a function of floats on
    integers."""
    wide, result = accumulation(v)
    activation = v.text("activation")
    if activation != "none" and MAPS[activation].floats and not result.is_float:
        allowed = [a for a in ACTIVATIONS if a == "none" or not MAPS[a].floats]
        raise InvalidParameter(
            f"activation is {activation}, which does not take {v.text('dtype')}; allowed: {', '.join(allowed)}",
            field="activation",
        )
    return ProductEpilogue(bias_name, v.flag("bias"), v.flag("residual"), activation, wide, result)


def _names(total: Tensor) -> list[str]:
    """Return the names of the axes of ``total``, for the stages after it."""
    assert total.stage is not None
    return [a.name.split("#")[0] for a in total.stage.axes]
