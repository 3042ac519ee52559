"""Functions of the prelude that compute: 16-bit floats, arithmetic as the IR has it, cheap stand-ins."""

from .device_function import Function

VALUES: dict[str, Function] = {
    "as": Function(
        """// several elements as what moves them at once
template <typename T> $T* as(void* place) { return reinterpret_cast<T*>(place); }
template <typename T> $const T* as(const void* place) { return reinterpret_cast<const T*>(place); }"""
    ),
    # --- 16-bit floats, kept as their bits
    "half_to_float": Function(
        """float half_to_float(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}"""
    ),
    "float_to_half": Function(
        """unsigned short float_to_half(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}"""
    ),
    "bfloat_to_float": Function(
        """float bfloat_to_float(unsigned short x) { return __uint_as_float((unsigned)x << 16); }"""
    ),
    "float_to_bfloat": Function(
        """unsigned short float_to_bfloat(float x) {
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}"""
    ),
    "double_to_odd": Function(
        """// to float32 so that a second rounding, to 16 bits, gives what one rounding would give (round to odd)
float double_to_odd(double x) {
  const float y = __double2float_rz(x);
  return (double)y != x && x == x ? __uint_as_float(__float_as_uint(y) | 1u) : y;
}"""
    ),
    "unpack_half": Function(
        """// N values from N / 2 words
template <int N> $void unpack_half(const unsigned* words, float* x) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x[2 * i]), "=f"(x[2 * i + 1]) : "r"(words[i]));
}"""
    ),
    "unpack_bfloat": Function(
        """// N values from N / 2 words
template <int N> $void unpack_bfloat(const unsigned* words, float* x) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}"""
    ),
    "pack_half": Function(
        """// N values into N / 2 words
template <int N> $void pack_half(const float* x, unsigned* words) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(words[i]) : "f"(x[2 * i]), "f"(x[2 * i + 1]));
}"""
    ),
    "pack_bfloat": Function(
        """// N values into N / 2 words
template <int N> $void pack_bfloat(const float* x, unsigned* words) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(words[i]) : "f"(x[2 * i]), "f"(x[2 * i + 1]));
}"""
    ),
    "bits_at": Function(
        """// the 16 bits of element i of packed words
unsigned short bits_at(const unsigned* words, int i) {
  return (unsigned short)(words[i / 2] >> 16 * (i % 2));
}"""
    ),
    "set_bits": Function(
        """void set_bits(unsigned* words, int i, unsigned short bits) {
  const unsigned other = words[i / 2] & (i % 2 ? 0x0000ffffu : 0xffff0000u);
  words[i / 2] = other | (unsigned)bits << 16 * (i % 2);
}"""
    ),
    # --- arithmetic
    "min_nan": Function(
        """// a NaN on either side is the result
float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
$double min_nan(double a, double b) { return a < b || a != a ? a : b; }"""
    ),
    "max_nan": Function(
        """// a NaN on either side is the result
float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
$double max_nan(double a, double b) { return a > b || a != a ? a : b; }"""
    ),
    "floor_divide": Function(
        """// towards minus infinity; by zero it is zero, and the lowest number by -1 wraps around
template <typename T> $T floor_divide(T a, T b) {
  if (b == 0) return 0;
  if (b == (T)-1 && (T)-1 < 0) return (T)(0ull - (unsigned long long)a);
  const T quotient = a / b, rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? quotient - 1 : quotient;
}"""
    ),
    "floor_modulo": Function(
        """// with the sign of the divisor; by zero it is zero
template <typename T> $T floor_modulo(T a, T b) {
  if (b == 0 || (b == (T)-1 && (T)-1 < 0)) return 0;
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}"""
    ),
    "float_to_int": Function(
        """// towards zero, saturating, a NaN to 0
int float_to_int(float x) { return x != x ? 0 : __float2int_rz(x); }
$int float_to_int(double x) { return x != x ? 0 : __double2int_rz(x); }"""
    ),
    "float_to_long": Function(
        """// towards zero, saturating, a NaN to 0
long long float_to_long(float x) { return x != x ? 0 : __float2ll_rz(x); }
$long long float_to_long(double x) { return x != x ? 0 : __double2ll_rz(x); }"""
    ),
    "fast_exp2": Function(
        """float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}"""
    ),
    "fast_exp": Function(
        """// relative error about 2^-21 in the range of 16-bit results
float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }""",
        ("fast_exp2",),
    ),
    "fast_divide": Function(
        """// at most 2 units in the last place
float fast_divide(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}"""
    ),
    "fast_sqrt": Function(
        """float fast_sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}"""
    ),
    "fast_reciprocal": Function(
        """// at most 1 unit in the last place; what would be subnormal is 0
float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}"""
    ),
    "fast_tanh": Function(
        """// relative error below 2^-16: x - x^3 / 3 near 0, and 1 - 2 / (exp(2 x) + 1) elsewhere
float fast_tanh(float x) {
  const float inverse = fast_reciprocal(fast_exp2(x * 2.8853900817779268f) + 1.0f);
  const float near = x - x * x * x * 0.33333333f;
  const float far = fmaf(-2.0f, inverse, 1.0f);
  return fabsf(x) < 0.0625f ? near : far;
}""",
        ("fast_exp2", "fast_reciprocal"),
    ),
}
"""Name -> function."""
