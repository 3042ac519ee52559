"""These functions convert and pack floats of 16 bits, which emitted code keeps as their bits, two in a 32-bit word.
They also convert numbers of 8 bits, and round to TF32."""

from .device_function import DeviceFunction

HALF: dict[str, DeviceFunction] = {
    "half_to_float": DeviceFunction(
        """float half_to_float(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}"""
    ),
    "float_to_half": DeviceFunction(
        """unsigned short float_to_half(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}"""
    ),
    "bfloat_to_float": DeviceFunction(
        """float bfloat_to_float(unsigned short x) { return __uint_as_float((unsigned)x << 16); }"""
    ),
    "float_to_bfloat": DeviceFunction(
        """unsigned short float_to_bfloat(float x) {
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}"""
    ),
    "e4m3_to_float": DeviceFunction(
        """// float16 has one bit of exponent more, and a bias that is 8 larger
float e4m3_to_float(unsigned char x) {
#if __CUDA_ARCH__ >= 890
  unsigned y;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((unsigned short)x));
  return half_to_float((unsigned short)y);
#else
  const float y = half_to_float((unsigned short)((x & 0x80) << 8 | (x & 0x7f) << 7)) * 256.0f;
  return (x & 0x7f) == 0x7f ? __int_as_float(0x7fffffff) : y;
#endif
}""",
        ("half_to_float",),
    ),
    "e5m2_to_float": DeviceFunction(
        """float e5m2_to_float(unsigned char x) { return half_to_float((unsigned short)(x << 8)); }""",
        ("half_to_float",),
    ),
    "byte_to_float": DeviceFunction(
        """// 2^23 + x has the bits of x as its last ones; conversions take four times as long
float byte_to_float(signed char x) { return __uint_as_float(0x4b000000u | (unsigned char)(x ^ 0x80)) - 8388736.0f; }"""
    ),
    "small_to_float": DeviceFunction(
        """// the same of whole numbers below 2^23
float small_to_float(unsigned x) { return __uint_as_float(0x4b000000u | x) - 8388608.0f; }"""
    ),
    **{
        f"{name}_pair_of_whole": DeviceFunction(
            f"""// {most} + a and {most} + b, of whole numbers below {most}
unsigned {name}_pair_of_whole(unsigned a, unsigned b) {{ return a | b << 16 | 0x{bits}{bits}u; }}"""
        )
        for name, most, bits in (("half", 1024, "6400"), ("bfloat", 128, "4300"))
    },
    "pair_of_bytes": DeviceFunction(
        """// the same as float16 of the last 8 bits of both
unsigned pair_of_bytes(unsigned a, unsigned b) { return (a & 0xff) | (b & 0xff) << 16 | 0x64006400u; }"""
    ),
    "e4m3_to_half2": DeviceFunction(
        """unsigned e4m3_to_half2(unsigned x) {
  unsigned y;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((unsigned short)x));
  return y;
}"""
    ),
    **{
        f"{op}_{name}2": DeviceFunction(
            f"""unsigned {op}_{name}2(unsigned a, unsigned b) {{
  unsigned y;
  asm("{op}.rn.{ptx}x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}}"""
        )
        for op in ("mul", "sub")
        for name, ptx in (("half", "f16"), ("bfloat", "bf16"))
    },
    "round_to_tf32": DeviceFunction(
        """float round_to_tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
}"""
    ),
    "double_to_float_odd": DeviceFunction(
        """// rounds to odd, so that a second rounding, to 16 bits, gives what one rounding would have given
float double_to_float_odd(double x) {
  const float y = __double2float_rz(x);
  return (double)y != x && x == x ? __uint_as_float(__float_as_uint(y) | 1u) : y;
}"""
    ),
    "unpack_half": DeviceFunction(
        """// converts N values that are packed in N / 2 words
template <int N> $void unpack_half(const unsigned* words, float* x) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x[2 * i]), "=f"(x[2 * i + 1]) : "r"(words[i]));
}"""
    ),
    "unpack_bfloat": DeviceFunction(
        """// converts N values that are packed in N / 2 words
template <int N> $void unpack_bfloat(const unsigned* words, float* x) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}"""
    ),
    "pack_half": DeviceFunction(
        """// converts N values and packs them into N / 2 words
template <int N> $void pack_half(const float* x, unsigned* words) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(words[i]) : "f"(x[2 * i]), "f"(x[2 * i + 1]));
}"""
    ),
    "pack_bfloat": DeviceFunction(
        """// converts N values and packs them into N / 2 words
template <int N> $void pack_bfloat(const float* x, unsigned* words) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(words[i]) : "f"(x[2 * i]), "f"(x[2 * i + 1]));
}"""
    ),
    **{
        f"{op}_nan_{name}2": DeviceFunction(
            f"""// of both elements of packed words; an element is NaN if either operand is
unsigned {op}_nan_{name}2(unsigned a, unsigned b) {{
  unsigned y;
  asm("{op}.NaN.{ptx}x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}}"""
        )
        for op in ("min", "max")
        for name, ptx in (("half", "f16"), ("bfloat", "bf16"))
    },
    "extract_u16": DeviceFunction(
        """// the bits of element i of packed words
unsigned short extract_u16(const unsigned* words, int i) {
  return (unsigned short)(words[i / 2] >> 16 * (i % 2));
}"""
    ),
    "insert_u16": DeviceFunction(
        """// replaces the bits of element i of packed words
void insert_u16(unsigned* words, int i, unsigned short bits) {
  const unsigned other = words[i / 2] & (i % 2 ? 0x0000ffffu : 0xffff0000u);
  words[i / 2] = other | (unsigned)bits << 16 * (i % 2);
}"""
    ),
}
"""It maps names to functions."""
