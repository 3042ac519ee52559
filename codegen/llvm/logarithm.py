"""log: the exponent and the mantissa are separated, and the mantissa goes through a polynomial.

``x = 2^k m`` with ``m`` from sqrt(1/2) to sqrt(2), ``f = m - 1``, and ``log x = k ln2 + log(1 + f)``. For float32
``log(1 + f) = f - f^2/2 + f^3 p(f)``. For float64, as in Tang's and Sun's libraries, ``s = f / (2 + f)`` and ``log(1 +
f) = f - (f^2/2 - s (f^2/2 + s^2 p(s^2)))``. The coefficients were fitted as in ``exponential``.

Measured errors: float32 is within 0.9 ulp, float64 within 0.8 ulp. 0 gives -inf and negatives give NaN; denormals are
exact inputs.
"""

from .values import LlvmValue
from .writer import FunctionWriter

_P32 = (
    0.3333333134651184,
    -0.250008225440979,
    0.20001226663589478,
    -0.16623356938362122,
    0.14201761782169342,
    -0.131601944565773,
    0.12761549651622772,
    -0.07634429633617401,
)
_P64 = (
    0.6666666666666734,
    0.39999999999414254,
    0.285714287424898,
    0.22222198561901266,
    0.18183564951579936,
    0.1531403360125093,
    0.14796128370362413,
)
_P64_FIFTH = (
    0.39999999999999974,
    0.2857142857144594,
    0.22222222217343707,
    0.18181818892885968,
    0.15384555403031583,
    0.1333637123745904,
    0.11673777303664341,
    0.1199728216382328,
)
"""The coefficients of ``(2 atanh(s) - 2 s - 2/3 s^3) / s^5`` in ``s^2``."""
_LN2 = {"float": (0.6931471824645996, -1.9046542121259336e-09), "double": (0.6931471805599453, 2.3190468138462996e-17)}
_TWO_THIRDS = (2 / 3, 3.700743415417188e-17)
_FORMATS = {
    # The fields are: mantissa bits, bits of sqrt(1/2), smallest normal, exponent that scales denormals up.
    "float": (23, 0x3F3504F3, 2.0**-126, 25),
    "double": (52, 0x3FE6A09E667F3BCD, 2.0**-1022, 54),
}
_BIAS, _TWO_TO_52 = 1023, 0x4330000000000000
"""The bias of exponents of float64, and the bits of 2^52."""


def log(w: FunctionWriter, x: LlvmValue) -> LlvmValue:
    """Write the natural logarithm of floats or doubles; return its result."""
    k, f = _split_exponent(w, x)
    ln2_high, ln2_low = (w.number(part, x) for part in _LN2[x.element])
    half_square = w.mul(w.mul(f, f), w.number(0.5, x))
    if x.element == "float":
        cube = w.mul(w.mul(f, f), f)
        tail = w.fma(k, ln2_low, w.mul(cube, w.polynomial(f, _P32)))
        result = w.fma(k, ln2_high, w.add(f, w.sub(tail, half_square)))
    else:
        s = w.div(f, w.add(w.number(2.0, x), f))
        z = w.mul(s, s)
        rest = w.mul(z, w.polynomial(z, _P64))
        below = w.sub(half_square, w.fma(s, w.add(half_square, rest), w.mul(k, ln2_low)))
        result = w.fma(k, ln2_high, w.sub(f, below))
    return _special_cases(w, x, result)


def log_double_double(w: FunctionWriter, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Return float64 ``log(x)`` for positive finite ``x`` as a double-double (high, low), to about 2^-65 relative.
    pow needs that precision."""
    k, f = _split_exponent(w, x)
    denominator = w.add(w.number(2.0, x), f)
    lost = w.sub(f, w.sub(denominator, w.number(2.0, x)))  # 2 + f = denominator + lost, exactly.
    s = w.div(f, denominator)
    s_low = w.div(w.sub(w.fma(w.negate(s), denominator, f), w.mul(s, lost)), denominator)
    z = w.mul(s, s)
    z_low = w.fma(w.number(2.0, x), w.mul(s, s_low), w.fma(s, s, w.negate(z)))
    # c = 2/3 + z p(z) is a double-double.
    p = w.mul(z, w.polynomial(z, _P64_FIFTH))
    c = w.add(w.number(_TWO_THIRDS[0], x), p)
    c_low = w.add(w.sub(p, w.sub(c, w.number(_TWO_THIRDS[0], x))), w.number(_TWO_THIRDS[1], x))
    # t = z c and u = s t are double-doubles, and log(1 + f) = 2 s + u.
    t, t_low = _double_double_product(w, z, z_low, c, c_low)
    u, u_low = _double_double_product(w, s, s_low, t, t_low)
    two_s = w.add(s, s)
    high, low = _fast_two_sum(w, two_s, u)
    low = w.add(low, w.add(w.add(s_low, s_low), u_low))
    ln2_high, ln2_low = (w.number(part, x) for part in _LN2["double"])
    k_high = w.mul(k, ln2_high)
    k_low = w.fma(k, ln2_low, w.fma(k, ln2_high, w.negate(k_high)))
    total, error = _two_sum(w, k_high, high)
    return _fast_two_sum(w, total, w.add(error, w.add(low, k_low)))


def _split_exponent(w: FunctionWriter, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Return (k as a float, m - 1) for ``x = 2^k m``."""
    mantissa_bits, root_bits, smallest, up = _FORMATS[x.element]
    tiny = w.compare("olt", x, w.number(smallest, x))
    scaled = w.select(tiny, w.mul(x, w.number(2.0**up, x)), x)
    bits = w.bits(scaled)
    if x.element == "float":
        k = w.op("ashr", w.sub(bits, w.number(root_bits, bits)), w.number(mantissa_bits, bits))
        k_float = w.convert("sitofp", k, x.element)
    else:  # AVX2 neither shifts the signs of 64-bit integers nor converts them: k + bias is put behind a power of two
        k = w.op("lshr", w.sub(bits, w.number(root_bits - (_BIAS << mantissa_bits), bits)), w.number(52, bits))
        k_float = w.convert("bitcast", w.op("or", k, w.number(_TWO_TO_52, bits)), x.element)
        k_float = w.sub(k_float, w.number(2.0**52 + _BIAS, x))
        k = w.sub(k, w.number(_BIAS, bits))
    m = w.convert("bitcast", w.sub(bits, w.op("shl", k, w.number(mantissa_bits, bits))), x.element)
    k_float = w.sub(k_float, w.select(tiny, w.number(float(up), x), w.number(0.0, x)))
    return k_float, w.sub(m, w.number(1.0, x))


def _special_cases(w: FunctionWriter, x: LlvmValue, result: LlvmValue) -> LlvmValue:
    infinity = w.number(float("inf"), x)
    result = w.select(w.compare("oeq", x, infinity), infinity, result)
    result = w.select(w.compare("ult", x, w.number(0.0, x)), w.number(float("nan"), x), result)
    return w.select(w.compare("oeq", x, w.number(0.0, x)), w.number(float("-inf"), x), result)


def _two_sum(w: FunctionWriter, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Knuth's TwoSum: a + b = high + low, exactly."""
    high = w.add(a, b)
    part = w.sub(high, a)
    return high, w.add(w.sub(a, w.sub(high, part)), w.sub(b, part))


def _fast_two_sum(w: FunctionWriter, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Dekker's FastTwoSum: a + b = high + low, exactly, for ``|a| >= |b|``."""
    high = w.add(a, b)
    return high, w.sub(b, w.sub(high, a))


def _double_double_product(
    w: FunctionWriter, a: LlvmValue, a_low: LlvmValue, b: LlvmValue, b_low: LlvmValue
) -> tuple[LlvmValue, LlvmValue]:
    """Return (a + a_low) (b + b_low) as (high, low)."""
    high = w.mul(a, b)
    low = w.fma(a, b, w.negate(high))
    return high, w.fma(a, b_low, w.fma(a_low, b, low))
