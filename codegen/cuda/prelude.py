"""The device functions that kernels use, each written out only where it is used: no header is needed."""

from collections.abc import Iterable
from dataclasses import dataclass

from .prelude_groups import GROUP_FUNCTIONS


@dataclass(frozen=True, slots=True)
class Function:
    """The text of one function (without its qualifiers), and the functions it calls."""

    text: str
    needs: tuple[str, ...] = ()


_DEVICE = "static __device__ __forceinline__ "

FUNCTIONS: dict[str, Function] = {
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
    # --- global memory
    "load_once": Function(
        """// data that is read once: through the read-only path, without keeping it in the first-level cache
uint4 load_once(const uint4* from) {
  uint4 x;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)));
  return x;
}
$uint2 load_once(const uint2* from) {
  uint2 x;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)));
  return x;
}
$unsigned load_once(const unsigned* from) {
  unsigned x;
  asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}"""
    ),
    "load_if": Function(
        """// zeros, and nothing is read, where the condition is false
uint4 load_if(const uint4* from, bool condition) {
  uint4 x;
  asm("{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
      " @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
}
$uint2 load_if(const uint2* from, bool condition) {
  uint2 x;
  asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
      " @p ld.global.nc.v2.u32 {%0, %1}, [%2]; }"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
}
$unsigned load_if(const unsigned* from, bool condition) {
  unsigned x;
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.u32 %0, [%1]; }"
      : "=r"(x) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
}"""
    ),
    "load_once_if": Function(
        """// as load_once; zeros, and nothing is read, where the condition is false
uint4 load_once_if(const uint4* from, bool condition) {
  uint4 x;
  asm("{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
      " @p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
}
$uint2 load_once_if(const uint2* from, bool condition) {
  uint2 x;
  asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
      " @p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
}
$unsigned load_once_if(const unsigned* from, bool condition) {
  unsigned x;
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.L1::no_allocate.u32 %0, [%1]; }"
      : "=r"(x) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
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
    "fast_exp": Function(
        """// relative error about 2^-21 in the range of 16-bit results
float fast_exp(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}"""
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
    "fast_tanh": Function(
        """// relative error below 2^-16: x - x^3 / 3 near 0, and 1 - 2 / (exp(2 x) + 1) elsewhere
float fast_tanh(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 2.8853900817779268f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
  const float near = x - x * x * x * 0.33333333f;
  const float far = fmaf(-2.0f, inverse, 1.0f);
  return fabsf(x) < 0.0625f ? near : far;
}"""
    ),
    # --- shared memory, the asynchronous ways into it, and what orders them
    "shared_address": Function(
        """unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }"""
    ),
    "copy_async": Function(
        """// BYTES from global to shared memory; zeros where the condition is false
template <int BYTES> $void copy_async(void* to, const void* from, bool condition = true) {
  const unsigned address = shared_address(to);
  const int size = condition ? BYTES : 0;
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(__cvta_generic_to_global(from)), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(address), "l"(__cvta_generic_to_global(from)), "n"(BYTES), "r"(size) : "memory");
}""",
        ("shared_address",),
    ),
    "commit_copies": Function("""void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }"""),
    "await_copies": Function(
        """// until at most PENDING groups of this thread are under way
template <int PENDING> $void await_copies() {
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}"""
    ),
    "init_arrivals": Function(
        """void init_arrivals(long long* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(barrier)), "r"(count) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}""",
        ("shared_address",),
    ),
    "bulk_copy": Function(
        """// arrives at the barrier, which expects the bytes, and starts the copy
void bulk_copy(void* to, const void* from, unsigned bytes, long long* barrier) {
  const unsigned target = shared_address(to), arrivals = shared_address(barrier);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(arrivals), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(target), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(arrivals) : "memory");
}""",
        ("shared_address",),
    ),
    "await_arrivals": Function(
        """void await_arrivals(long long* barrier, unsigned parity) {
  const unsigned address = shared_address(barrier);
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(address), "r"(parity) : "memory");
}""",
        ("shared_address",),
    ),
    "cluster_barrier": Function(
        """void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}"""
    ),
    "peer_load": Function(
        """// from the shared memory of another block of the cluster
uint4 peer_load(const uint4* from, unsigned block) {
  uint4 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [a]; }"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
$uint2 peer_load(const uint2* from, unsigned block) {
  uint2 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %2, %3; ld.shared::cluster.v2.u32 {%0, %1}, [a]; }"
               : "=r"(x.x), "=r"(x.y) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
$unsigned peer_load(const unsigned* from, unsigned block) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u32 %0, [a]; }"
               : "=r"(x) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
$unsigned short peer_load(const unsigned short* from, unsigned block) {
  unsigned short x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u16 %0, [a]; }"
               : "=h"(x) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
$unsigned char peer_load(const unsigned char* from, unsigned block) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u8 %0, [a]; }"
               : "=r"(x) : "r"(shared_address(from)), "r"(block) : "memory");
  return (unsigned char)x;
}""",
        ("shared_address",),
    ),
    # --- matrix instructions
    "mma_m16n8k16_f16": Function(
        """// d += a * b, all three as fragments of a warp
void mma_m16n8k16_f16(float* d, const unsigned* a, const unsigned* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}"""
    ),
    "mma_m16n8k16_bf16": Function(
        """// d += a * b, all three as fragments of a warp
void mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}"""
    ),
    "load_matrix": Function(
        """// COUNT matrices of 8 rows of 8 16-bit elements; each lane says where one row begins
template <int COUNT, bool TRANSPOSED> $void load_matrix(unsigned* to, const void* row) {
  const unsigned address = shared_address(row);
  if (COUNT == 4 && TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
  else if (COUNT == 4)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
  else if (COUNT == 2 && TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
  else if (COUNT == 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
  else if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(to[0]) : "r"(address) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(to[0]) : "r"(address) : "memory");
}""",
        ("shared_address",),
    ),
    **{name: Function(text, needs) for name, (text, needs) in GROUP_FUNCTIONS.items()},
}
"""Name -> function. ``$`` in a text stands for the qualifiers of a device function; without one they come first."""


def prelude(used: Iterable[str]) -> str:
    """The functions named, and those they call, in the order of the table."""
    wanted = set(used)
    pending = list(wanted)
    while pending:
        for name in FUNCTIONS[pending.pop()].needs:
            if name not in wanted:
                wanted.add(name)
                pending.append(name)
    return "".join(f"{_qualified(FUNCTIONS[name].text)}\n\n" for name in FUNCTIONS if name in wanted)


def _qualified(text: str) -> str:
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    if not lines[first].startswith(("template", "struct")):
        lines[first] = f"${lines[first]}"
    return "\n".join(lines).replace("$", _DEVICE)
