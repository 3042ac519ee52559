"""Functions of the prelude that move data and order it: global and shared memory, barriers, matrix instructions."""

from .device_function import Function


def _guarded_load(name: str, load: str) -> str:
    """A load of 16, 8 or 4 bytes under a condition, ``load`` being the instruction."""
    return f"""uint4 {name}(const uint4* from, bool condition) {{
  uint4 x;
  asm volatile("{{ .reg .pred p; setp.ne.u32 p, %5, 0;"
      " mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
      " @p {load}.v4.u32 {{%0, %1, %2, %3}}, [%4]; }}"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
}}
$uint2 {name}(const uint2* from, bool condition) {{
  uint2 x;
  asm volatile("{{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
      " @p {load}.v2.u32 {{%0, %1}}, [%2]; }}"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
}}
$unsigned {name}(const unsigned* from, bool condition) {{
  unsigned x;
  asm volatile("{{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p {load}.u32 %0, [%1]; }}"
      : "=r"(x) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)condition));
  return x;
}}"""


MEMORY: dict[str, Function] = {
    # --- order of launches
    "let_next_launch": Function(
        """// the next launch may send blocks where there is room
void let_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}"""
    ),
    "await_earlier_launch": Function(
        """// from here on, all that earlier launches wrote is there
void await_earlier_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}"""
    ),
    # --- global memory
    "prefetch": Function(
        """// BYTES into the cache in front of memory; what a load finds there later is what was written last
template <int BYTES> $void prefetch(const void* from) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(__cvta_generic_to_global(from)), "n"(BYTES));
#endif
}"""
    ),
    "prefetch_units": Function(
        """// as prefetch, BYTES from anywhere on: the units of 16 bytes that they lie in
template <int BYTES> $void prefetch_units(const void* from) {
#if __CUDA_ARCH__ >= 900
  const unsigned long long first = __cvta_generic_to_global(from) & ~15ull;
  const unsigned bytes = ((unsigned)(__cvta_generic_to_global(from) - first) + BYTES + 15) & ~15u;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(first), "r"(bytes));
#endif
}"""
    ),
    "load_once": Function(
        """// data that is read once: without keeping it in the first-level cache
uint4 load_once(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)));
  return x;
}
$uint2 load_once(const uint2* from) {
  uint2 x;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)));
  return x;
}
$unsigned load_once(const unsigned* from) {
  unsigned x;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}"""
    ),
    "load_if": Function(
        "// zeros, and nothing is read, where the condition is false\n" + _guarded_load("load_if", "ld.global")
    ),
    "load_once_if": Function(
        "// as load_once; zeros, and nothing is read, where the condition is false\n"
        + _guarded_load("load_once_if", "ld.global.L1::no_allocate")
    ),
    "load_run": Function(
        """// 2 * WORDS neighbours that may begin in the middle of a word: the words that they lie in, shifted
template <int WORDS> $void load_run(unsigned* to, const unsigned short* from, int at) {
  const unsigned* words = reinterpret_cast<const unsigned*>(from) + (at >> 1);
  const int odd = at & 1;
  unsigned x[WORDS + 1];
  #pragma unroll
  for (int i = 0; i < WORDS; ++i) x[i] = words[i];
  x[WORDS] = from[at + 2 * WORDS - 1];  // the other half of its word may be beyond the end
  #pragma unroll
  for (int i = 0; i < WORDS; ++i) to[i] = __funnelshift_r(x[i], x[i + 1], 16 * odd);
}"""
    ),
    "load_run_wide": Function(
        """// 8 neighbours that may begin anywhere, from a buffer that begins at a multiple of 16 bytes: the one or two
// pieces of 16 bytes that they lie in, shifted; one after another where the buffer ends ahead of a whole piece
template <typename I> $uint4 load_run_wide(const unsigned short* from, I at, long long whole) {
  if ((long long)at + 8 > whole) {
    unsigned last[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) last[i] = from[at + 2 * i] | (unsigned)from[at + 2 * i + 1] << 16;
    return make_uint4(last[0], last[1], last[2], last[3]);
  }
  const uint4* pieces = reinterpret_cast<const uint4*>(from);
  const uint4 a = pieces[at >> 3], b = pieces[(at + 7) >> 3];
  const bool four = at & 4, two = at & 2;
  const int odd = 16 * (at & 1);
  unsigned x[6] = {four ? a.z : a.x, four ? a.w : a.y, four ? b.x : a.z,
                   four ? b.y : a.w, four ? b.z : b.x, four ? b.w : b.y};
  #pragma unroll
  for (int i = 0; i < 5; ++i) x[i] = two ? x[i + 1] : x[i];
  return make_uint4(__funnelshift_r(x[0], x[1], odd), __funnelshift_r(x[1], x[2], odd),
                    __funnelshift_r(x[2], x[3], odd), __funnelshift_r(x[3], x[4], odd));
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
    "copy_async_commit": Function(
        """void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }"""
    ),
    "copy_async_wait": Function(
        """// until at most PENDING groups of this thread are under way
template <int PENDING> $void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}"""
    ),
    "mbarrier_init": Function(
        """void mbarrier_init(long long* barrier, unsigned count) {
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
    "mbarrier_wait": Function(
        """void mbarrier_wait(long long* barrier, unsigned parity) {
  const unsigned address = shared_address(barrier);
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(address), "r"(parity) : "memory");
}""",
        ("shared_address",),
    ),
    "cluster_load_wait": Function(
        """// a use of the value that stays ahead of the barriers that follow: its loads are done there
template <typename T> $void cluster_load_wait(T value) {
  const unsigned rare = value == (T)-77777;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p membar.cta; }" :: "r"(rare) : "memory");
}"""
    ),
    "cluster_end": Function(
        """// no block of the cluster ends before all have come here; what they stored is not waited for
void cluster_end() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}"""
    ),
    "cluster_barrier_shared": Function(
        """// others then see what was stored in shared memory; stores to global memory are not waited for
void cluster_barrier_shared() {
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}"""
    ),
    "cluster_barrier": Function(
        """void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}"""
    ),
    "cluster_load": Function(
        """// from the shared memory of another block of the cluster
uint4 cluster_load(const uint4* from, unsigned block) {
  uint4 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [a]; }"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
$uint2 cluster_load(const uint2* from, unsigned block) {
  uint2 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %2, %3; ld.shared::cluster.v2.u32 {%0, %1}, [a]; }"
               : "=r"(x.x), "=r"(x.y) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
$unsigned cluster_load(const unsigned* from, unsigned block) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u32 %0, [a]; }"
               : "=r"(x) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
$unsigned short cluster_load(const unsigned short* from, unsigned block) {
  unsigned short x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u16 %0, [a]; }"
               : "=h"(x) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
$unsigned char cluster_load(const unsigned char* from, unsigned block) {
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
}
"""Name -> function."""
