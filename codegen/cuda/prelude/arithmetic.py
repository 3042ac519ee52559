"""These functions are operators as the IR defines them, and approximations for kernels with 16-bit results (see
``emit.arithmetic``)."""

from .device_function import DeviceFunction

ARITHMETIC: dict[str, DeviceFunction] = {
    "min_nan": DeviceFunction(
        """// the result is NaN if either operand is
float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
$double min_nan(double a, double b) { return a < b || a != a ? a : b; }"""
    ),
    "max_nan": DeviceFunction(
        """// the result is NaN if either operand is
float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
$double max_nan(double a, double b) { return a > b || a != a ? a : b; }"""
    ),
    "floor_div": DeviceFunction(
        """// rounds towards minus infinity; a division by zero gives zero, and that of the lowest number by -1 wraps
template <typename T> $T floor_div(T a, T b) {
  if (b == 0) return 0;
  if (b == (T)-1 && (T)-1 < 0) return (T)(0ull - (unsigned long long)a);
  const T quotient = a / b, remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? quotient - 1 : quotient;
}"""
    ),
    "floor_mod": DeviceFunction(
        """// has the sign of the divisor; a division by zero gives zero
template <typename T> $T floor_mod(T a, T b) {
  if (b == 0 || (b == (T)-1 && (T)-1 < 0)) return 0;
  const T remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}"""
    ),
    "float_to_int": DeviceFunction(
        """// rounds towards zero and saturates; NaN gives 0, which cvt from 32 bits to 32 bits does by itself
int float_to_int(float x) { return __float2int_rz(x); }
$int float_to_int(double x) { return x != x ? 0 : __double2int_rz(x); }"""
    ),
    "float_to_byte": DeviceFunction(
        """// rounds towards zero and saturates; NaN gives 0. The sum has the number in its last bits.
unsigned char float_to_byte(float x) {
  return (unsigned char)__float_as_uint(__fadd_rz(fminf(fmaxf(x, 0.0f), 255.0f), 8388608.0f));
}"""
    ),
    "float_to_long": DeviceFunction(
        """// rounds towards zero and saturates; NaN gives 0
long long float_to_long(float x) { return x != x ? 0 : __float2ll_rz(x); }
$long long float_to_long(double x) { return x != x ? 0 : __double2ll_rz(x); }"""
    ),
    "divide": DeviceFunction(
        """// has no branch. Most quotients are rounded correctly. The others are off by 1 unit in the last place, or by
// up to 3 where a is subnormal. The scale keeps the reciprocal among normal numbers. The estimate has the right
// value where the remainder is NaN, and the right sign where the quotient is 0.
float divide(float a, float b) {
  const float size = fabsf(b), scale = size < 0x1p-64f ? 0x1p64f : size > 0x1p64f ? 0x1p-64f : 1.0f;
  const float x = a * scale, y = b * scale;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  const float estimate = x * inverse, quotient = fmaf(fmaf(-y, estimate, x), inverse, estimate);
  return fabsf(quotient) > 0.0f ? quotient : estimate;
}"""
    ),
    "root": DeviceFunction(
        """// has no branch. Nearly all roots are rounded correctly. The others are off by 1 unit in the last place.
// The scale keeps small numbers normal. The roots of 0 and of infinity are these themselves.
float root(float x) {
  const bool small = x < 0x1p-64f;
  const float y = small ? x * 0x1p64f : x;
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  const float estimate = y * inverse, near = fmaf(fmaf(-estimate, estimate, y), 0.5f * inverse, estimate);
  const float root = y == 0.0f || y == __int_as_float(0x7f800000) ? y : near;
  return small ? root * 0x1p-32f : root;
}"""
    ),
    "fast_exp2": DeviceFunction(
        """float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}"""
    ),
    "fast_exp": DeviceFunction(
        """// has a relative error of about 2^-21 in the range of 16-bit results
float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }""",
        ("fast_exp2",),
    ),
    "fast_divide": DeviceFunction(
        """// is off by at most 2 units in the last place
float fast_divide(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}"""
    ),
    "fast_sqrt": DeviceFunction(
        """float fast_sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}"""
    ),
    "fast_reciprocal": DeviceFunction(
        """// is off by at most 1 unit in the last place; subnormal results become 0
float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}"""
    ),
    "fast_erf": DeviceFunction(
        """// has an error of about 3 units in the last place: x p(x^2) up to 1, and 1 - 2^-q(|x|) beyond.
// The polynomials p and q minimise their largest error.
// erff takes so many registers that a product that ends with it spills.
float fast_erf(float x) {
  const float square = x * x, size = fminf(fabsf(x), 4.0f);
  float near = 7.88911954e-05f;
  near = fmaf(near, square, -0.000802084128f); near = fmaf(near, square, 0.00518953534f);
  near = fmaf(near, square, -0.0268544446f); near = fmaf(near, square, 0.112836002f);
  near = fmaf(near, square, -0.376126271f); near = fmaf(near, square, 1.12837917f);
  float far = -0.00026772798f;
  far = fmaf(far, size, 0.00424096907f); far = fmaf(far, size, -0.0314584721f);
  far = fmaf(far, size, 0.148651597f); far = fmaf(far, size, 0.920764911f);
  far = fmaf(far, size, 1.62597513f); far = fmaf(far, size, 0.00051029409f);
  far = copysignf(1.0f - fast_exp2(-far), x);
  return fabsf(x) > 1.0f ? far : x * near;
}""",
        ("fast_exp2",),
    ),
    "fast_tanh": DeviceFunction(
        """// has a relative error below 2^-16: x - x^3 / 3 near 0, and 1 - 2 / (exp(2 x) + 1) elsewhere
float fast_tanh(float x) {
  const float inverse = fast_reciprocal(fast_exp2(x * 2.8853900817779268f) + 1.0f);
  const float near = x - x * x * x * 0.33333333f;
  const float far = fmaf(-2.0f, inverse, 1.0f);
  return fabsf(x) < 0.0625f ? near : far;
}""",
        ("fast_exp2", "fast_reciprocal"),
    ),
}
"""It maps names to functions."""
