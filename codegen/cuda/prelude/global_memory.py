"""These functions access global memory: loads that L1 does not keep or that bring whole cache lines into L2, predicated
and unaligned loads, prefetches into L2."""

from .device_function import DeviceFunction


def _predicated_load(name: str, instruction: str) -> str:
    """Return overloads that load 16, 8 or 4 bytes under a predicate."""
    return f"""uint4 {name}(const uint4* from, bool predicate) {{
  uint4 x;
  asm volatile("{{ .reg .pred p; setp.ne.u32 p, %5, 0;"
      " mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
      " @p {instruction}.v4.u32 {{%0, %1, %2, %3}}, [%4]; }}"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)predicate));
  return x;
}}
$uint2 {name}(const uint2* from, bool predicate) {{
  uint2 x;
  asm volatile("{{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
      " @p {instruction}.v2.u32 {{%0, %1}}, [%2]; }}"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)predicate));
  return x;
}}
$unsigned {name}(const unsigned* from, bool predicate) {{
  unsigned x;
  asm volatile("{{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p {instruction}.u32 %0, [%1]; }}"
      : "=r"(x) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)predicate));
  return x;
}}"""


def _line_load(name: str, instruction: str) -> str:
    """Return overloads that load 8, 4 or 2 bytes."""
    return f"""uint2 {name}(const uint2* from) {{
  uint2 x;
  asm volatile("{instruction}.v2.u32 {{%0, %1}}, [%2];"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)));
  return x;
}}
$unsigned {name}(const unsigned* from) {{
  unsigned x;
  asm volatile("{instruction}.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}}
$int {name}(const int* from) {{
  int x;
  asm volatile("{instruction}.s32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}}
$float {name}(const float* from) {{
  float x;
  asm volatile("{instruction}.f32 %0, [%1];" : "=f"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}}
$unsigned short {name}(const unsigned short* from) {{
  unsigned short x;
  asm volatile("{instruction}.u16 %0, [%1];" : "=h"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}}"""


GLOBAL_MEMORY: dict[str, DeviceFunction] = {
    "recast": DeviceFunction(
        """// the same address as a pointer to a vector type, which moves several elements at once
template <typename T> $T* recast(void* pointer) { return reinterpret_cast<T*>(pointer); }
template <typename T> $const T* recast(const void* pointer) { return reinterpret_cast<const T*>(pointer); }"""
    ),
    "prefetch_l2": DeviceFunction(
        """// brings BYTES into L2, where all writes meet: a later load finds there what was written last
template <int BYTES> $void prefetch_l2(const void* from) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(__cvta_generic_to_global(from)), "n"(BYTES));
#endif
}"""
    ),
    "prefetch_l2_unaligned": DeviceFunction(
        """// the same for BYTES at any address: brings all chunks of 16 bytes that they touch
template <int BYTES> $void prefetch_l2_unaligned(const void* from) {
#if __CUDA_ARCH__ >= 900
  const unsigned long long first = __cvta_generic_to_global(from) & ~15ull;
  const unsigned bytes = ((unsigned)(__cvta_generic_to_global(from) - first) + BYTES + 15) & ~15u;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(first), "r"(bytes));
#endif
}"""
    ),
    "prefetch_l2_line": DeviceFunction(
        """// brings the cache line of an address into L2
void prefetch_l2_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(from)));
}"""
    ),
    "ld_global_no_allocate": DeviceFunction(
        """// loads data that is read once: L1 does not keep it
uint4 ld_global_no_allocate(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)));
  return x;
}
$uint2 ld_global_no_allocate(const uint2* from) {
  uint2 x;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)));
  return x;
}
$unsigned ld_global_no_allocate(const unsigned* from) {
  unsigned x;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}"""
    ),
    "ld_global_if": DeviceFunction(
        "// gives zeros and reads nothing where the predicate is false\n"
        + _predicated_load("ld_global_if", "ld.global")
    ),
    "ld_global_no_allocate_if": DeviceFunction(
        "// as ld_global_no_allocate; gives zeros and reads nothing where the predicate is false\n"
        + _predicated_load("ld_global_no_allocate_if", "ld.global.L1::no_allocate")
    ),
    "ld_global_line": DeviceFunction(
        "// brings the whole cache line into L2, too: others load the rest of it at about the same time\n"
        + _line_load("ld_global_line", "ld.global.L2::128B")
    ),
    "ld_global_no_allocate_line": DeviceFunction(
        "// as ld_global_no_allocate; brings the whole cache line into L2, too\n"
        + _line_load("ld_global_no_allocate_line", "ld.global.L1::no_allocate.L2::128B")
    ),
    "ld_global_line_if": DeviceFunction(
        "// as ld_global_line; gives zeros and reads nothing where the predicate is false\n"
        + _predicated_load("ld_global_line_if", "ld.global.L2::128B")
    ),
    "ld_global_no_allocate_line_if": DeviceFunction(
        "// as ld_global_no_allocate_line; gives zeros and reads nothing where the predicate is false\n"
        + _predicated_load("ld_global_no_allocate_line_if", "ld.global.L1::no_allocate.L2::128B")
    ),
    "load_unaligned": DeviceFunction(
        """// loads 2 * WORDS contiguous elements, which may begin in the middle of a word: loads words and shifts them
template <int WORDS> $void load_unaligned(unsigned* to, const unsigned short* from, int offset) {
  const unsigned* words = reinterpret_cast<const unsigned*>(from) + (offset >> 1);
  const int odd = offset & 1;
  unsigned x[WORDS + 1];
  #pragma unroll
  for (int i = 0; i < WORDS; ++i) x[i] = words[i];
  x[WORDS] = from[offset + 2 * WORDS - 1];  // the other half of its word may lie beyond the end
  #pragma unroll
  for (int i = 0; i < WORDS; ++i) to[i] = __funnelshift_r(x[i], x[i + 1], 16 * odd);
}"""
    ),
    "load_unaligned_x8": DeviceFunction(
        """// loads 8 contiguous elements at any offset of a buffer that is aligned to 16 bytes: loads the one or two
// chunks of 16 bytes that hold them, which lie in the buffer, and shifts
template <typename I> $uint4 load_unaligned_x8(const unsigned short* from, I offset) {
  const uint4* chunks = reinterpret_cast<const uint4*>(from);
  const uint4 a = chunks[offset >> 3], b = chunks[(offset + 7) >> 3];
  const bool four = offset & 4, two = offset & 2;
  const int odd = 16 * (offset & 1);
  unsigned x[6] = {four ? a.z : a.x, four ? a.w : a.y, four ? b.x : a.z,
                   four ? b.y : a.w, four ? b.z : b.x, four ? b.w : b.y};
  #pragma unroll
  for (int i = 0; i < 5; ++i) x[i] = two ? x[i + 1] : x[i];
  return make_uint4(__funnelshift_r(x[0], x[1], odd), __funnelshift_r(x[1], x[2], odd),
                    __funnelshift_r(x[2], x[3], odd), __funnelshift_r(x[3], x[4], odd));
}"""
    ),
    "load_unaligned_x8_first": DeviceFunction(
        """// the first COUNT of 8 elements from OFFSET + STEP on, and zeros for the others, or for all where not ANY;
// STEP is a multiple of 8 that is known once loops are unrolled; what lies beyond the last whole chunk, which
// ends at END, is not read and becomes zeros, too
template <typename I, typename S, typename E>
$uint4 load_unaligned_x8_first(const unsigned short* from, I offset, S step, bool any, long long count, E end) {
  const uint4* chunks = reinterpret_cast<const uint4*>(from);
  const uint4* first = chunks + (offset >> 3);
  const uint4* next = chunks + ((offset + 7) >> 3);
  const uint4 a = ld_global_if(first + step / 8, any && offset < end - step);
  const uint4 b = ld_global_if(next + step / 8, any && offset + 7 < end - step);
  const bool four = offset & 4, two = offset & 2;
  const int odd = 16 * (offset & 1), there = (int)min(count, 8ll);
  unsigned x[6] = {four ? a.z : a.x, four ? a.w : a.y, four ? b.x : a.z,
                   four ? b.y : a.w, four ? b.z : b.x, four ? b.w : b.y};
  #pragma unroll
  for (int i = 0; i < 5; ++i) x[i] = two ? x[i + 1] : x[i];
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = __funnelshift_r(x[i], x[i + 1], odd);
    x[i] = there >= 2 * i + 2 ? x[i] : there == 2 * i + 1 ? x[i] & 0xffff : 0;
  }
  return make_uint4(x[0], x[1], x[2], x[3]);
}""",
        needs=("ld_global_if",),
    ),
    "load_unaligned_x8_before": DeviceFunction(
        """// the same where chunks may reach beyond the last whole one, which ends at END: single elements there
template <typename I> $uint4 load_unaligned_x8_before(const unsigned short* from, I offset, long long end) {
  if ((long long)offset + 8 <= end) return load_unaligned_x8(from, offset);
  unsigned last[4];
  #pragma unroll
  for (int i = 0; i < 4; ++i) last[i] = from[offset + 2 * i] | (unsigned)from[offset + 2 * i + 1] << 16;
  return make_uint4(last[0], last[1], last[2], last[3]);
}""",
        needs=("load_unaligned_x8",),
    ),
}
"""It maps names to functions."""
