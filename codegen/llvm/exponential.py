"""exp and exp2: the argument is split by powers of two, the remainder goes through a polynomial, and the exponent is
put back.

``x = n ln2 + r`` with ``|r| <= ln2 / 2`` (Cody and Waite's reduction with fused steps), and ``exp(r) = 1 + r + r^2
q(r)``. The coefficients of ``q`` were fitted for this project: weighted least squares in the Chebyshev basis,
reweighted (Lawson) towards the smallest largest error, in extended precision, then rounded.

Measured against higher precision, float32 is within 1.1 ulp and float64 within 1.1 ulp. Overflow, underflow to
denormals and zero, infinities and NaN are as in IEEE 754's recommended operations.
"""

from dataclasses import dataclass

from .values import LlvmValue
from .writer import FunctionWriter

_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """The constants that differ between float32 and float64. Below ``lowest`` the result is 0, above ``highest``
    infinite."""

    mantissa_bits: int
    bias: int
    magic: float
    ln2_high: float
    ln2_low: float
    lowest: float
    highest: float
    polynomial: tuple[float, ...]


FORMATS = {
    "float": FloatFormat(
        23,
        127,
        1.5 * 2**23,
        0.6931471824645996,
        -1.9046542121259336e-09,
        -105.0,
        89.0,
        (0.5, 0.166665181517601, 0.04166620597243309, 0.008368889801204205, 0.0013950489228591323),
    ),
    "double": FloatFormat(
        52,
        1023,
        1.5 * 2**52,
        0.6931471805599453,
        2.3190468138462996e-17,
        -746.0,
        710.0,
        (
            0.5000000000000013,
            0.16666666666666696,
            0.04166666666651513,
            0.008333333333308825,
            0.0013888888947075977,
            0.0001984126991406528,
            2.4801489889689445e-05,
            2.7557219143445982e-06,
            2.7631296696206603e-07,
            2.5116990250750653e-08,
        ),
    ),
}


def exp(w: FunctionWriter, x: LlvmValue, correction: LlvmValue | None = None) -> LlvmValue:
    """Write ``exp(x)``. With ``correction``, which must be far smaller than ``x``, write ``exp(x + correction)``."""
    form = FORMATS[x.element]
    x = _clamped(w, x, form)
    magic = w.number(form.magic, x)
    shifted = w.fma(x, w.number(_LOG2_E, x), magic)  # The last bits of the sum are x / ln2, rounded.
    n = w.sub(shifted, magic)
    r = w.fma(n, w.number(-form.ln2_high, x), x)
    r = w.fma(n, w.number(-form.ln2_low, x), r)
    if correction is not None:
        r = w.add(r, correction)
    return _exp_of_reduced(w, r, w.sub(w.bits(shifted), w.bits(magic)))


def exp2(w: FunctionWriter, x: LlvmValue) -> LlvmValue:
    """Write ``2^x``: ``x = n + r / ln2``, where splitting off ``n`` is exact."""
    form = FORMATS[x.element]
    x = _clamped(w, x, form, _LOG2_E)
    magic = w.number(form.magic, x)
    shifted = w.add(x, magic)
    f = w.sub(x, w.sub(shifted, magic))
    r = w.fma(f, w.number(form.ln2_high, x), w.mul(f, w.number(form.ln2_low, x)))
    return _exp_of_reduced(w, r, w.sub(w.bits(shifted), w.bits(magic)))


def _exp_of_reduced(w: FunctionWriter, r: LlvmValue, exponent: LlvmValue) -> LlvmValue:
    """Write ``exp(r) * 2^exponent`` for ``|r| <= ln2 / 2``."""
    form = FORMATS[r.element]
    q = w.polynomial(r, form.polynomial)
    mantissa = w.add(w.fma(w.mul(r, r), q, r), w.number(1.0, r))
    return scale(w, mantissa, exponent)


def scale(w: FunctionWriter, value: LlvmValue, exponent: LlvmValue) -> LlvmValue:
    """Write ``value * 2^exponent`` with one rounding. ``exponent`` is an integer of the same width with |exponent| <
    1.1 bias."""
    form = FORMATS[value.element]
    if "avx512f" in w.module.features and "avx512vl" in w.module.features:
        narrow = w.convert("trunc", exponent, "i32")
        name = f"llvm.ldexp.{value.suffix}.{narrow.suffix}"
        w.module.declare(f"declare {value.type} @{name}({value.type}, {narrow.type})")
        return w.call(name, [value, narrow], value.element, value.lanes)
    half = w.op("ashr", exponent, w.number(1, exponent))
    for part in (half, w.sub(exponent, half)):  # 2^exponent alone may be out of range.
        biased = w.add(part, w.number(form.bias, part))
        power = w.convert("bitcast", w.op("shl", biased, w.number(form.mantissa_bits, part)), value.element)
        value = w.mul(value, power)
    return value


def _clamped(w: FunctionWriter, x: LlvmValue, form: FloatFormat, unit: float = 1.0) -> LlvmValue:
    """Clamp ``x`` to the range where the result is neither 0 nor infinite; a NaN stays. ``unit``: the logarithm of e to
    the base of the power."""
    low, high = w.number(form.lowest * unit, x), w.number(form.highest * unit, x)
    x = w.select(w.compare("olt", x, low), low, x)
    return w.select(w.compare("ogt", x, high), high, x)
