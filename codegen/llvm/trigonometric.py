"""sin and cos: the argument is reduced to [-pi/4, pi/4] and a quadrant, then goes through one of two polynomials.

``x = n pi/2 + r`` with pi/2 in three parts and fused steps; float32 is reduced in float64. Arguments beyond
``_LARGEST``, infinities and NaN send the whole vector to the C library: they are rare, and their exact reduction is
long. The coefficients were fitted as in ``exponential``. Measured errors below ``_LARGEST``: float32 is within 1.6 ulp,
float64 within 1.6 ulp.
"""

from .values import LlvmValue, constant
from .writer import FunctionWriter

_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.497384905065873e-33)
_TWO_OVER_PI = 0.6366197723675814
_LARGEST = {"float": 2.0**30, "double": 2.0**26}
_MAGIC = 1.5 * 2**52
_SIN = {
    "float": (-0.1666666716337204, 0.008333329111337662, -0.00019839330343529582, 2.7182738904230064e-06),
    "double": (
        -0.16666666666666632,
        0.008333333333322372,
        -0.0001984126982977233,
        2.7557313679081935e-06,
        -2.505075602612445e-08,
        1.5896670170859478e-10,
    ),
}
_COS = {
    "float": (0.0416666679084301, -0.0013888883404433727, 2.4799515813356265e-05, -2.720989016324893e-07),
    "double": (
        0.0416666666666666,
        -0.001388888888887402,
        2.480158728941744e-05,
        -2.755731433364882e-07,
        2.0875720729314817e-09,
        -1.1359515655489444e-11,
    ),
}


def sin(w: FunctionWriter, x: LlvmValue) -> LlvmValue:
    return _with_library_fallback(w, x, "sin", 0)


def cos(w: FunctionWriter, x: LlvmValue) -> LlvmValue:
    return _with_library_fallback(w, x, "cos", 1)


def _with_library_fallback(w: FunctionWriter, x: LlvmValue, name: str, quadrant: int) -> LlvmValue:
    """Evaluate the polynomial for ordinary arguments, and call the C library for a vector that holds any other."""
    inside = w.compare("ole", w.absolute(x), w.number(_LARGEST[x.element], x))
    if inside.lanes > 1:
        every = f"llvm.vector.reduce.and.{inside.suffix}"
        w.module.declare(f"declare i1 @{every}({inside.type})")
        inside = w.call(every, [inside], "i1")
    plain, rare, join = w.label("plain"), w.label("rare"), w.label("join")
    w.branch(inside, plain, rare)
    w.begin_block(plain)
    ordinary = _reduce_and_evaluate(w, x, quadrant)
    after_plain = w.block
    w.jump(join)
    w.begin_block(rare)
    library = w.call(_library(w, x, name), [x], x.element, x.lanes)
    after_rare = w.block
    w.jump(join)
    w.begin_block(join)
    return w.phi([(ordinary, after_plain), (library, after_rare)])


def _reduce_and_evaluate(w: FunctionWriter, x: LlvmValue, quadrant: int) -> LlvmValue:
    wide = w.convert("fpext", x, "double")
    magic = w.number(_MAGIC, wide)
    shifted = w.fma(wide, w.number(_TWO_OVER_PI, wide), magic)
    n = w.sub(shifted, magic)
    r = wide
    for part in _HALF_PI:
        r = w.fma(n, w.number(-part, wide), r)
    r = w.convert("fptrunc", r, x.element)
    number = w.add(w.bits(shifted), constant(quadrant, "i64", x.lanes))
    z = w.mul(r, r)
    sine = w.fma(w.mul(r, z), w.polynomial(z, _SIN[x.element]), r)
    cosine = w.fma(w.mul(z, z), w.polynomial(z, _COS[x.element]), w.fma(z, w.number(-0.5, x), w.number(1.0, x)))
    zero = w.number(0, number)
    odd = w.compare("ne", w.op("and", number, w.number(1, number)), zero)
    result = w.select(odd, cosine, sine)
    negative = w.compare("ne", w.op("and", number, w.number(2, number)), zero)
    return w.select(negative, w.negate(result), result)


def _library(w: FunctionWriter, x: LlvmValue, name: str) -> str:
    """Return a function that calls the C library for each lane. It is marked cold and is not inlined."""
    function = f"tw.{name}.library.{x.suffix}"
    if w.module.defines(function):
        return function
    w.module.reserve(function)
    c_name = name + ("f" if x.element == "float" else "")
    w.module.declare(f"declare {x.element} @{c_name}({x.element})")
    inner = FunctionWriter(w.module)
    value = inner.parameter("x", x.element, x.lanes)
    if x.lanes == 1:
        result = inner.call(c_name, [value], x.element)
    else:
        result = LlvmValue("poison", x.element, x.lanes)
        for lane in range(x.lanes):
            one = inner.assign(f"extractelement {value.typed}, i64 {lane}", x.element)
            one = inner.call(c_name, [one], x.element)
            result = inner.assign(f"insertelement {result.typed}, {one.typed}, i64 {lane}", x.element, x.lanes)
    inner.line(f"ret {result.typed}")
    signature = f"internal {x.type} @{function}({value.typed}) noinline cold {w.module.attributes}"
    w.module.define(function, inner.text(signature))
    return function
