"""pow: ``exp(y log|x|)``, with a logarithm of more digits than the result, and the special cases of IEEE 754.

float32 is computed in float64. For float64 the logarithm is a double-double (``logarithm.log_double_double``), and so
is its product with ``y``. Small whole exponents become multiplications. Measured errors: float32 is within 0.6 ulp,
float64 within 1.2 ulp.
"""

from .exponential import exp
from .logarithm import log, log_double_double
from .values import LlvmValue, constant
from .writer import FunctionWriter

_LARGEST_PRODUCT = 4


def small_exponent(w: FunctionWriter, x: LlvmValue, y: LlvmValue) -> LlvmValue | None:
    """Return ``x^y`` as multiplications when ``y`` is a constant from 1 to 4, else None."""
    for number in range(1, _LARGEST_PRODUCT + 1):
        if y.text in (constant(number, y.element, y.lanes).text, constant(number, y.element).text):
            square = w.mul(x, x) if number > 1 else x
            return {1: x, 2: square}.get(number) or w.mul(square, x if number == 3 else square)
    return None


def power(w: FunctionWriter, x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Write ``x`` to the power of ``y``, floats or doubles; return its result."""
    if x.element == "float":
        wide = power(w, w.convert("fpext", x, "double"), w.convert("fpext", y, "double"))
        return w.convert("fptrunc", wide, "float")
    size = w.absolute(x)
    high, low = log_double_double(w, size)
    rough = log(w, size)  # It is right where the double-double is not: 0, infinities, NaN.
    product = w.mul(y, rough)
    fine = w.mul(y, high)
    rest = w.fma(y, low, w.fma(y, high, w.negate(fine)))
    limit = w.number(1000.0, x)
    usable = w.op(
        "and",
        w.compare("olt", w.absolute(fine), limit),
        w.compare("one", w.absolute(rough), w.number(float("inf"), x)),
    )
    result = exp(w, w.select(usable, fine, product), w.select(usable, rest, w.number(0.0, x)))
    return _special_cases(w, x, y, size, result)


def _special_cases(w: FunctionWriter, x: LlvmValue, y: LlvmValue, size: LlvmValue, result: LlvmValue) -> LlvmValue:
    zero, one = w.number(0.0, x), w.number(1.0, x)
    # -1 to an infinite power is 1, like any power of 1 and any 0th power.
    unit = w.op("and", w.compare("oeq", size, one), w.compare("oeq", w.absolute(y), w.number(float("inf"), x)))
    result = w.select(unit, one, result)
    whole = w.compare("oeq", w.intrinsic("floor", y), y)
    half = w.mul(y, w.number(0.5, x))
    odd = w.op("and", whole, w.compare("one", w.intrinsic("floor", half), half))
    sign_bit = w.compare("slt", w.bits(x), w.number(0, w.bits(x)))
    result = w.select(w.op("and", sign_bit, odd), w.negate(result), result)
    finite = w.compare("olt", size, w.number(float("inf"), x))
    no_root = w.op("and", w.op("and", w.compare("olt", x, zero), finite), w.op("xor", whole, w.number(1, whole)))
    result = w.select(no_root, w.number(float("nan"), x), result)
    trivial = w.op("or", w.compare("oeq", x, one), w.compare("oeq", y, zero))
    return w.select(trivial, one, result)
