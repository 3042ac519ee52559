// kernel for cuda sm_90a: tw_kernel<<<4, 384, 49248>>>

// converts N values and packs them into N / 2 words
template <int N> static __device__ __forceinline__ void pack_half(const float* x, unsigned* words) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(words[i]) : "f"(x[2 * i]), "f"(x[2 * i + 1]));
}

// the result is NaN if either operand is
static __device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
static __device__ __forceinline__ double max_nan(double a, double b) { return a > b || a != a ? a : b; }

static __device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// is off by at most 1 unit in the last place; subnormal results become 0
static __device__ __forceinline__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// lets the next kernel in the stream start its blocks while this one still runs
static __device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// waits until earlier kernels have ended and all that they wrote can be seen
static __device__ __forceinline__ void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// the warp's index in its block; the shuffle tells the compiler that it is uniform in the warp
static __device__ __forceinline__ int warp_index() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }

static __device__ __forceinline__ unsigned smem_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// makes what this thread wrote to shared memory visible to TMA and wgmma
static __device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// a phase ends after this many arrivals; the fence shows the barrier to the cluster and to TMA
static __device__ __forceinline__ void mbarrier_init(long long* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(smem_address(barrier)), "r"(count) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(smem_address(barrier)) : "memory");
}

// arrives, and makes the phase wait for this many bytes of asynchronous copies
static __device__ __forceinline__ void mbarrier_arrive_expect_tx(long long* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(smem_address(barrier)), "r"(bytes) : "memory");
}

// waits until the phase of this parity has ended
static __device__ __forceinline__ void mbarrier_wait(long long* barrier, unsigned parity) {
  const unsigned address = smem_address(barrier);
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(address), "r"(parity) : "memory");
}

// layout of a tensor in global memory and the shape of a box, as cuTensorMapEncodeTiled encodes them
struct __align__(64) TensorMap {
  unsigned long long words[16];
};

static __device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// a cache policy for data that is touched once: L2 evicts it first
static __device__ __forceinline__ unsigned long long l2_evict_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

// starts to copy a box from global to shared memory; its bytes complete the transaction of the barrier
template <bool EVICT_FIRST> static __device__ __forceinline__ void tma_load_3d(void* to, const TensorMap* map, long long* barrier, int c0, int c1, int c2) {
  if (EVICT_FIRST)
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5}], [%2], %6;"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "l"(l2_evict_first())
                 : "memory");
  else
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2) : "memory");
}

// starts to copy a box from global to shared memory; its bytes complete the transaction of the barrier
template <bool EVICT_FIRST> static __device__ __forceinline__ void tma_load_4d(void* to, const TensorMap* map, long long* barrier, int c0, int c1, int c2, int c3) {
  if (EVICT_FIRST)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(l2_evict_first())
                 : "memory");
  else
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

// starts to copy a box from shared to global memory
template <bool EVICT_FIRST> static __device__ __forceinline__ void tma_store_4d(const void* from, const TensorMap* map, int c0, int c1, int c2, int c3) {
  if (EVICT_FIRST)
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%1, {%2, %3, %4, %5}], [%0], %6;"
                 :: "r"(smem_address(from)), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(l2_evict_first()) : "memory");
  else
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%1, {%2, %3, %4, %5}], [%0];"
                 :: "r"(smem_address(from)), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

static __device__ __forceinline__ void tma_store_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// waits until all but the youngest PENDING groups of this thread have read their sources
template <int PENDING> static __device__ __forceinline__ void tma_store_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}

// stores COUNT 8x8 matrices of 16-bit elements; each lane passes the address of one row
template <int COUNT, bool TRANSPOSED> static __device__ __forceinline__ void stmatrix(void* row, const unsigned* from) {
  const unsigned address = smem_address(row);
  if (COUNT == 4 && TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
  else if (COUNT == 4)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
  else if (COUNT == 2 && TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]) : "memory");
  else if (COUNT == 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]) : "memory");
  else if (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
                 :: "r"(address), "r"(from[0]) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};"
                 :: "r"(address), "r"(from[0]) : "memory");
}

// describes a K-major operand: rows of 128 bytes along k, groups of 8 rows 1024 bytes apart
static __device__ __forceinline__ unsigned long long wgmma_descriptor(const void* tile) {
  return (smem_address(tile) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// describes an MN-major operand: rows of 64 elements along m or n, the next 64 begin LEADING_BYTES further
template <int LEADING_BYTES> static __device__ __forceinline__ unsigned long long wgmma_descriptor_mn_major(const void* tile) {
  const unsigned long long leading = LEADING_BYTES >> 4;
  return (smem_address(tile) & 0x3ffff) >> 4 | leading << 16 | 64ull << 32 | 1ull << 62;
}

// starts d += a * b, or d = a * b, where a is 64 x K and b is K x 64, in shared memory with the
// 128-byte swizzle; an operand is MN_MAJOR where it is contiguous along m or n, and not along k
template <int K, bool MN_MAJOR_A, bool MN_MAJOR_B> static __device__ __forceinline__ void wgmma_m64n64k16_f16(
    float* d, unsigned long long descriptor_a, unsigned long long descriptor_b, bool accumulate = true) {
  asm volatile("wgmma.fence.sync.aligned;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) :: "memory");
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, %35, %36; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) : "l"(descriptor_a + (MN_MAJOR_A ? 128 : 2) * k),
                   "l"(descriptor_b + (MN_MAJOR_B ? 128 : 2) * k),
                   "r"(k > 0 || accumulate ? 1 : 0), "n"(MN_MAJOR_A), "n"(MN_MAJOR_B));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// starts d += a * b, or d = a * b, where a is 64 x K, in registers, and b is as above
template <int K, bool MN_MAJOR_B> static __device__ __forceinline__ void wgmma_m64n64k16_f16_register_a(
    float* d, const unsigned* a, unsigned long long descriptor_b, bool accumulate = true) {
  asm volatile("wgmma.fence.sync.aligned;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) :: "memory");
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) : "r"(a[4 * k]), "r"(a[4 * k + 1]), "r"(a[4 * k + 2]), "r"(a[4 * k + 3]),
                   "l"(descriptor_b + (MN_MAJOR_B ? 128 : 2) * k),
                   "r"(k > 0 || accumulate ? 1 : 0), "n"(MN_MAJOR_B));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// waits until at most PENDING groups of this warpgroup, the youngest, are still in flight
template <int PENDING> static __device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// this use of the value stays ahead of later waits, and so does all that it is computed from
static __device__ __forceinline__ void computed_here(float value) {
  asm volatile("{ .reg .pred p; setp.eq.f32 p, %0, 0fC797E880; @p membar.cta; }" :: "f"(value) : "memory");
}

// keeps the compiler from reading these accumulators earlier than here
template <int COUNT> static __device__ __forceinline__ void warpgroup_fence_operand(float* d) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}

// a named barrier of the 128 threads of this warpgroup
static __device__ __forceinline__ void warpgroup_sync() { asm volatile("bar.sync %0, 128;" :: "r"(1 + threadIdx.x / 128) : "memory"); }

// the first WARPGROUPS warpgroups take turns from now on, by a named barrier of each; the first one begins
template <int WARPGROUPS> static __device__ __forceinline__ void ordered_sequence_start() {
  if (threadIdx.x / 128 == WARPGROUPS - 1) asm volatile("bar.arrive 9, 256;" ::: "memory");
}

template <int WARPGROUPS> static __device__ __forceinline__ void ordered_sequence_wait() {
  asm volatile("bar.sync %0, 256;" :: "r"(9 + threadIdx.x / 128) : "memory");
}

// the turn of the next warpgroup begins
template <int WARPGROUPS> static __device__ __forceinline__ void ordered_sequence_arrive() {
  asm volatile("bar.arrive %0, 256;" :: "r"(9 + (threadIdx.x / 128 + 1) % WARPGROUPS) : "memory");
}

template <int COUNT> static __device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

template <int COUNT> static __device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

extern "C" __global__ void __launch_bounds__(384, 1) tw_kernel(
    const __grid_constant__ TensorMap Y_map,
    const __grid_constant__ TensorMap Q_map,
    const __grid_constant__ TensorMap K_map,
    const __grid_constant__ TensorMap V_map) {
  const int cta = blockIdx.x;
  const int warp = warp_index();
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned short* const q = reinterpret_cast<unsigned short*>(shared + 0);
  unsigned short* const k_2 = reinterpret_cast<unsigned short*>(shared + 16384);
  unsigned short* const v = reinterpret_cast<unsigned short*>(shared + 32768);
  long long* const full = reinterpret_cast<long long*>(shared + 49152);
  long long* const empty = reinterpret_cast<long long*>(shared + 49168);
  long long* const full_2 = reinterpret_cast<long long*>(shared + 49184);
  long long* const empty_2 = reinterpret_cast<long long*>(shared + 49200);
  long long* const full_3 = reinterpret_cast<long long*>(shared + 49216);
  long long* const empty_3 = reinterpret_cast<long long*>(shared + 49232);
  if (threadIdx.x == 0) {
    prefetch_tensormap(&Y_map);
    prefetch_tensormap(&Q_map);
    prefetch_tensormap(&K_map);
    prefetch_tensormap(&V_map);
  }
  griddepcontrol_launch_dependents();
  __align__(16) float sums[32];
  __align__(16) float scores[32];
  __align__(16) unsigned weights[16];
  __align__(8) float row_max[2];
  __align__(16) float row_sum[4];
  __align__(8) float decay[2];
  if (warp == 8 && lane == 0) {
    mbarrier_init(&full[0], 1);
    mbarrier_init(&empty[0], 2);
    #pragma unroll 1
    for (int stage = 0; stage < 2; ++stage) {
      mbarrier_init(&full_2[stage], 1);
      mbarrier_init(&empty_2[stage], 8);
      mbarrier_init(&full_3[stage], 1);
      mbarrier_init(&empty_3[stage], 8);
    }
  }
  __syncthreads();
  griddepcontrol_wait();
  if (warp < 8) {
    setmaxnreg_inc<240>();
    ordered_sequence_start<2>();
    #pragma unroll
    for (int start_half = 0; start_half < 2; ++start_half) {
      row_max[start_half] = __int_as_float((int)0xff800000);
      #pragma unroll
      for (int start_column = 0; start_column < 2; ++start_column) {
        row_sum[start_half * 2 + start_column] = 0.0f;
      }
    }
    #pragma unroll
    for (int zeroed = 0; zeroed < 32; ++zeroed) {
      sums[zeroed] = 0.0f;
    }
    mbarrier_wait(&full[0], 0);
    ordered_sequence_wait<2>();
    mbarrier_wait(&full_2[0], 0);
    wgmma_m64n64k16_f16<64, false, false>(scores, wgmma_descriptor(&q[0 * 8192 + 0 * 8192 + (warp >> 2) * 64 * 64 + 0]), wgmma_descriptor(&k_2[0 * 4096 + 0 * 4096 + 0 * 64 + 0]), false);
    ordered_sequence_arrive<2>();
    wgmma_wait_group<0>(); warpgroup_fence_operand<32>(sums); warpgroup_fence_operand<32>(scores);
    if (lane == 0) {
      mbarrier_arrive(&empty_2[0]);
    }
    __align__(8) int place_form[2];
    #pragma unroll
    for (int place_half = 0; place_half < 2; ++place_half) {
      place_form[place_half] = warp * 16 + (lane >> 2) + place_half * 8 - (lane & 3) * 2 - (cta & 1) * 128 + 20;
    }
    #pragma unroll
    for (int prepared = 0; prepared < 8; ++prepared) {
      #pragma unroll
      for (int prepared_half = 0; prepared_half < 2; ++prepared_half) {
        #pragma unroll
        for (int prepared_column = 0; prepared_column < 2; ++prepared_column) {
          scores[prepared * 4 + prepared_half * 2 + prepared_column] = prepared * 8 + prepared_column <= place_form[prepared_half] ? scores[prepared * 4 + prepared_half * 2 + prepared_column] : __int_as_float((int)0xff800000);
        }
      }
    }
    __align__(16) float peak[4];
    #pragma unroll
    for (int peak_half = 0; peak_half < 2; ++peak_half) {
      #pragma unroll
      for (int peak_column = 0; peak_column < 2; ++peak_column) {
        peak[peak_half * 2 + peak_column] = row_max[peak_half];
      }
    }
    #pragma unroll
    for (int compared = 0; compared < 8; ++compared) {
      #pragma unroll
      for (int compared_half = 0; compared_half < 2; ++compared_half) {
        #pragma unroll
        for (int compared_column = 0; compared_column < 2; ++compared_column) {
          peak[compared_half * 2 + compared_column] = max_nan(peak[compared_half * 2 + compared_column], scores[compared * 4 + compared_half * 2 + compared_column]);
        }
      }
    }
    #pragma unroll
    for (int max_half = 0; max_half < 2; ++max_half) {
      decay[max_half] = row_max[max_half];
      row_max[max_half] = max_nan(peak[max_half * 2], peak[max_half * 2 + 1]);
      float peak_of_quad_0[1];
      const float t = __shfl_xor_sync(0xffffffffu, row_max[max_half], 1);
      peak_of_quad_0[0] = t;
      row_max[max_half] = max_nan(row_max[max_half], peak_of_quad_0[0]);
      const float t_1 = __shfl_xor_sync(0xffffffffu, row_max[max_half], 2);
      peak_of_quad_0[0] = t_1;
      row_max[max_half] = max_nan(row_max[max_half], peak_of_quad_0[0]);
    }
    __align__(8) float shift[2];
    #pragma unroll
    for (int shift_half = 0; shift_half < 2; ++shift_half) {
      shift[shift_half] = row_max[shift_half] == __int_as_float((int)0xff800000) ? 0.0f : row_max[shift_half] * 0.18033688f;
      decay[shift_half] = fast_exp2(decay[shift_half] * 0.18033688f - shift[shift_half]);
      #pragma unroll
      for (int decayed_column = 0; decayed_column < 2; ++decayed_column) {
        row_sum[shift_half * 2 + decayed_column] = row_sum[shift_half * 2 + decayed_column] * decay[shift_half];
      }
    }
    #pragma unroll
    for (int weighed = 0; weighed < 8; ++weighed) {
      #pragma unroll
      for (int weighed_half = 0; weighed_half < 2; ++weighed_half) {
        #pragma unroll
        for (int weighed_column = 0; weighed_column < 2; ++weighed_column) {
          scores[weighed * 4 + weighed_half * 2 + weighed_column] = fast_exp2(scores[weighed * 4 + weighed_half * 2 + weighed_column] * 0.18033688f - shift[weighed_half]);
          row_sum[weighed_half * 2 + weighed_column] = row_sum[weighed_half * 2 + weighed_column] + scores[weighed * 4 + weighed_half * 2 + weighed_column];
        }
      }
    }
    #pragma unroll
    for (int rounded = 0; rounded < 16; ++rounded) {
      float r[2];
      #pragma unroll
      for (int l_1 = 0; l_1 < 2; ++l_1) {
        r[l_1] = scores[rounded * 2 + l_1];
      }
      pack_half<2>(r, weights + rounded * 2 / 2);
    }
    const int block_end = (cta & 1) * 2;
    #pragma unroll 1
    for (int block = 0; block < 3 && block < block_end; ++block) {
      ordered_sequence_wait<2>();
      const int t_2 = block + 1;
      mbarrier_wait(&full_2[t_2 & 1], t_2 >> 1);
      wgmma_m64n64k16_f16<64, false, false>(scores, wgmma_descriptor(&q[0 * 8192 + 0 * 8192 + (warp >> 2) * 64 * 64 + 0]), wgmma_descriptor(&k_2[((block + 1) & 1) * 4096 + 0 * 4096 + 0 * 64 + 0]), false);
      mbarrier_wait(&full_3[block], 0);
      wgmma_m64n64k16_f16_register_a<64, true>(sums, weights, wgmma_descriptor_mn_major<8192>(&v[block * 4096 + 0 * 4096 + 0 * 64 + 0]));
      ordered_sequence_arrive<2>();
      wgmma_wait_group<1>(); warpgroup_fence_operand<32>(sums); warpgroup_fence_operand<32>(scores);
      if (lane == 0) {
        mbarrier_arrive(&empty_2[(block + 1) & 1]);
      }
      __align__(8) int place_form_2[2];
      #pragma unroll
      for (int place_half_2 = 0; place_half_2 < 2; ++place_half_2) {
        place_form_2[place_half_2] = warp * 16 + (lane >> 2) + place_half_2 * 8 + block * 64 - (lane & 3) * 2 - (cta & 1) * 128 + 84;
      }
      #pragma unroll
      for (int prepared_2 = 0; prepared_2 < 8; ++prepared_2) {
        #pragma unroll
        for (int prepared_half_2 = 0; prepared_half_2 < 2; ++prepared_half_2) {
          #pragma unroll
          for (int prepared_column_2 = 0; prepared_column_2 < 2; ++prepared_column_2) {
            scores[prepared_2 * 4 + prepared_half_2 * 2 + prepared_column_2] = prepared_2 * 8 + prepared_column_2 <= place_form_2[prepared_half_2] ? scores[prepared_2 * 4 + prepared_half_2 * 2 + prepared_column_2] : __int_as_float((int)0xff800000);
          }
        }
      }
      __align__(16) float peak_2[4];
      #pragma unroll
      for (int peak_half_2 = 0; peak_half_2 < 2; ++peak_half_2) {
        #pragma unroll
        for (int peak_column_2 = 0; peak_column_2 < 2; ++peak_column_2) {
          peak_2[peak_half_2 * 2 + peak_column_2] = row_max[peak_half_2];
        }
      }
      #pragma unroll
      for (int compared_2 = 0; compared_2 < 8; ++compared_2) {
        #pragma unroll
        for (int compared_half_2 = 0; compared_half_2 < 2; ++compared_half_2) {
          #pragma unroll
          for (int compared_column_2 = 0; compared_column_2 < 2; ++compared_column_2) {
            peak_2[compared_half_2 * 2 + compared_column_2] = max_nan(peak_2[compared_half_2 * 2 + compared_column_2], scores[compared_2 * 4 + compared_half_2 * 2 + compared_column_2]);
          }
        }
      }
      #pragma unroll
      for (int max_half_2 = 0; max_half_2 < 2; ++max_half_2) {
        decay[max_half_2] = row_max[max_half_2];
        row_max[max_half_2] = max_nan(peak_2[max_half_2 * 2], peak_2[max_half_2 * 2 + 1]);
        float peak_of_quad_0_2[1];
        const float t_3 = __shfl_xor_sync(0xffffffffu, row_max[max_half_2], 1);
        peak_of_quad_0_2[0] = t_3;
        row_max[max_half_2] = max_nan(row_max[max_half_2], peak_of_quad_0_2[0]);
        const float t_4 = __shfl_xor_sync(0xffffffffu, row_max[max_half_2], 2);
        peak_of_quad_0_2[0] = t_4;
        row_max[max_half_2] = max_nan(row_max[max_half_2], peak_of_quad_0_2[0]);
      }
      __align__(8) float shift_2[2];
      #pragma unroll
      for (int shift_half_2 = 0; shift_half_2 < 2; ++shift_half_2) {
        shift_2[shift_half_2] = row_max[shift_half_2] == __int_as_float((int)0xff800000) ? 0.0f : row_max[shift_half_2] * 0.18033688f;
        decay[shift_half_2] = fast_exp2(decay[shift_half_2] * 0.18033688f - shift_2[shift_half_2]);
        #pragma unroll
        for (int decayed_column_2 = 0; decayed_column_2 < 2; ++decayed_column_2) {
          row_sum[shift_half_2 * 2 + decayed_column_2] = row_sum[shift_half_2 * 2 + decayed_column_2] * decay[shift_half_2];
        }
      }
      #pragma unroll
      for (int weighed_2 = 0; weighed_2 < 8; ++weighed_2) {
        #pragma unroll
        for (int weighed_half_2 = 0; weighed_half_2 < 2; ++weighed_half_2) {
          #pragma unroll
          for (int weighed_column_2 = 0; weighed_column_2 < 2; ++weighed_column_2) {
            scores[weighed_2 * 4 + weighed_half_2 * 2 + weighed_column_2] = fast_exp2(scores[weighed_2 * 4 + weighed_half_2 * 2 + weighed_column_2] * 0.18033688f - shift_2[weighed_half_2]);
            row_sum[weighed_half_2 * 2 + weighed_column_2] = row_sum[weighed_half_2 * 2 + weighed_column_2] + scores[weighed_2 * 4 + weighed_half_2 * 2 + weighed_column_2];
          }
        }
      }
      computed_here(row_sum[0] + row_sum[1] + (row_sum[2] + row_sum[3])); wgmma_wait_group<0>(); warpgroup_fence_operand<32>(sums); warpgroup_fence_operand<32>(scores);
      if (lane == 0) {
        mbarrier_arrive(&empty_3[block]);
      }
      #pragma unroll
      for (int rescaled = 0; rescaled < 8; ++rescaled) {
        #pragma unroll
        for (int rescaled_half = 0; rescaled_half < 2; ++rescaled_half) {
          #pragma unroll
          for (int rescaled_column = 0; rescaled_column < 2; ++rescaled_column) {
            sums[rescaled * 4 + rescaled_half * 2 + rescaled_column] = sums[rescaled * 4 + rescaled_half * 2 + rescaled_column] * decay[rescaled_half];
          }
        }
      }
      #pragma unroll
      for (int rounded_2 = 0; rounded_2 < 16; ++rounded_2) {
        float r_1[2];
        #pragma unroll
        for (int l_3 = 0; l_3 < 2; ++l_3) {
          r_1[l_3] = scores[rounded_2 * 2 + l_3];
        }
        pack_half<2>(r_1, weights + rounded_2 * 2 / 2);
      }
    }
    const int block_2_end = 2 - (cta & 1) * 2;
    #pragma unroll 1
    for (int block_2 = 0; block_2 < 3 && block_2 < block_2_end; ++block_2) {
      ordered_sequence_wait<2>();
      const int t_5 = block_2 + 1;
      mbarrier_wait(&full_2[t_5 & 1], ((cta & 1) + (t_5 >> 1)) & 1);
      wgmma_m64n64k16_f16<64, false, false>(scores, wgmma_descriptor(&q[0 * 8192 + 0 * 8192 + (warp >> 2) * 64 * 64 + 0]), wgmma_descriptor(&k_2[((block_2 + 1) & 1) * 4096 + 0 * 4096 + 0 * 64 + 0]), false);
      mbarrier_wait(&full_3[block_2], cta & 1);
      wgmma_m64n64k16_f16_register_a<64, true>(sums, weights, wgmma_descriptor_mn_major<8192>(&v[block_2 * 4096 + 0 * 4096 + 0 * 64 + 0]));
      ordered_sequence_arrive<2>();
      wgmma_wait_group<1>(); warpgroup_fence_operand<32>(sums); warpgroup_fence_operand<32>(scores);
      if (lane == 0) {
        mbarrier_arrive(&empty_2[(block_2 + 1) & 1]);
      }
      __align__(16) float peak_3[4];
      #pragma unroll
      for (int peak_half_3 = 0; peak_half_3 < 2; ++peak_half_3) {
        #pragma unroll
        for (int peak_column_3 = 0; peak_column_3 < 2; ++peak_column_3) {
          peak_3[peak_half_3 * 2 + peak_column_3] = row_max[peak_half_3];
        }
      }
      #pragma unroll
      for (int compared_3 = 0; compared_3 < 8; ++compared_3) {
        #pragma unroll
        for (int compared_half_3 = 0; compared_half_3 < 2; ++compared_half_3) {
          #pragma unroll
          for (int compared_column_3 = 0; compared_column_3 < 2; ++compared_column_3) {
            peak_3[compared_half_3 * 2 + compared_column_3] = max_nan(peak_3[compared_half_3 * 2 + compared_column_3], scores[compared_3 * 4 + compared_half_3 * 2 + compared_column_3]);
          }
        }
      }
      #pragma unroll
      for (int max_half_3 = 0; max_half_3 < 2; ++max_half_3) {
        decay[max_half_3] = row_max[max_half_3];
        row_max[max_half_3] = max_nan(peak_3[max_half_3 * 2], peak_3[max_half_3 * 2 + 1]);
        float peak_of_quad_0_3[1];
        const float t_6 = __shfl_xor_sync(0xffffffffu, row_max[max_half_3], 1);
        peak_of_quad_0_3[0] = t_6;
        row_max[max_half_3] = max_nan(row_max[max_half_3], peak_of_quad_0_3[0]);
        const float t_7 = __shfl_xor_sync(0xffffffffu, row_max[max_half_3], 2);
        peak_of_quad_0_3[0] = t_7;
        row_max[max_half_3] = max_nan(row_max[max_half_3], peak_of_quad_0_3[0]);
      }
      __align__(8) float shift_3[2];
      #pragma unroll
      for (int shift_half_3 = 0; shift_half_3 < 2; ++shift_half_3) {
        shift_3[shift_half_3] = row_max[shift_half_3] == __int_as_float((int)0xff800000) ? 0.0f : row_max[shift_half_3] * 0.18033688f;
        decay[shift_half_3] = fast_exp2(decay[shift_half_3] * 0.18033688f - shift_3[shift_half_3]);
        #pragma unroll
        for (int decayed_column_3 = 0; decayed_column_3 < 2; ++decayed_column_3) {
          row_sum[shift_half_3 * 2 + decayed_column_3] = row_sum[shift_half_3 * 2 + decayed_column_3] * decay[shift_half_3];
        }
      }
      #pragma unroll
      for (int weighed_3 = 0; weighed_3 < 8; ++weighed_3) {
        #pragma unroll
        for (int weighed_half_3 = 0; weighed_half_3 < 2; ++weighed_half_3) {
          #pragma unroll
          for (int weighed_column_3 = 0; weighed_column_3 < 2; ++weighed_column_3) {
            scores[weighed_3 * 4 + weighed_half_3 * 2 + weighed_column_3] = fast_exp2(scores[weighed_3 * 4 + weighed_half_3 * 2 + weighed_column_3] * 0.18033688f - shift_3[weighed_half_3]);
            row_sum[weighed_half_3 * 2 + weighed_column_3] = row_sum[weighed_half_3 * 2 + weighed_column_3] + scores[weighed_3 * 4 + weighed_half_3 * 2 + weighed_column_3];
          }
        }
      }
      computed_here(row_sum[0] + row_sum[1] + (row_sum[2] + row_sum[3])); wgmma_wait_group<0>(); warpgroup_fence_operand<32>(sums); warpgroup_fence_operand<32>(scores);
      if (lane == 0) {
        mbarrier_arrive(&empty_3[block_2]);
      }
      #pragma unroll
      for (int rescaled_2 = 0; rescaled_2 < 8; ++rescaled_2) {
        #pragma unroll
        for (int rescaled_half_2 = 0; rescaled_half_2 < 2; ++rescaled_half_2) {
          #pragma unroll
          for (int rescaled_column_2 = 0; rescaled_column_2 < 2; ++rescaled_column_2) {
            sums[rescaled_2 * 4 + rescaled_half_2 * 2 + rescaled_column_2] = sums[rescaled_2 * 4 + rescaled_half_2 * 2 + rescaled_column_2] * decay[rescaled_half_2];
          }
        }
      }
      #pragma unroll
      for (int rounded_3 = 0; rounded_3 < 16; ++rounded_3) {
        float r_2[2];
        #pragma unroll
        for (int l_5 = 0; l_5 < 2; ++l_5) {
          r_2[l_5] = scores[rounded_3 * 2 + l_5];
        }
        pack_half<2>(r_2, weights + rounded_3 * 2 / 2);
      }
    }
    mbarrier_wait(&full_3[0], 1);
    wgmma_m64n64k16_f16_register_a<64, true>(sums, weights, wgmma_descriptor_mn_major<8192>(&v[0 * 4096 + 0 * 4096 + 0 * 64 + 0]));
    wgmma_wait_group<0>(); warpgroup_fence_operand<32>(sums); warpgroup_fence_operand<32>(scores);
    if (lane == 0) {
      mbarrier_arrive(&empty_3[0]);
    }
    #pragma unroll
    for (int total_half = 0; total_half < 2; ++total_half) {
      decay[total_half] = row_sum[total_half * 2] + row_sum[total_half * 2 + 1];
      float of_quad_0[1];
      const float t_8 = __shfl_xor_sync(0xffffffffu, decay[total_half], 1);
      of_quad_0[0] = t_8;
      decay[total_half] = decay[total_half] + of_quad_0[0];
      const float t_9 = __shfl_xor_sync(0xffffffffu, decay[total_half], 2);
      of_quad_0[0] = t_9;
      decay[total_half] = decay[total_half] + of_quad_0[0];
      decay[total_half] = fast_reciprocal(decay[total_half]);
    }
    #pragma unroll
    for (int rescaled_3 = 0; rescaled_3 < 8; ++rescaled_3) {
      #pragma unroll
      for (int rescaled_half_3 = 0; rescaled_half_3 < 2; ++rescaled_half_3) {
        #pragma unroll
        for (int rescaled_column_3 = 0; rescaled_column_3 < 2; ++rescaled_column_3) {
          sums[rescaled_3 * 4 + rescaled_half_3 * 2 + rescaled_column_3] = sums[rescaled_3 * 4 + rescaled_half_3 * 2 + rescaled_column_3] * decay[rescaled_half_3];
        }
      }
    }
    __align__(16) unsigned output[16];
    #pragma unroll
    for (int output_pair = 0; output_pair < 8; ++output_pair) {
      #pragma unroll
      for (int output_half = 0; output_half < 2; ++output_half) {
        float r_3[2];
        #pragma unroll
        for (int l_7 = 0; l_7 < 2; ++l_7) {
          r_3[l_7] = sums[output_pair * 4 + output_half * 2 + l_7];
        }
        pack_half<2>(r_3, output + (output_pair * 4 + output_half * 2) / 2);
      }
    }
    warpgroup_sync();
    const int offset = (lane >> 4) * 8 + (lane & 15) * 64;
    stmatrix<4, false>(&q[warp * 1024 + (offset ^ ((offset >> 3) & 56))], output);
    const int offset_1 = (lane >> 4) * 8 + (lane & 15) * 64 + 16;
    stmatrix<4, false>(&q[warp * 1024 + (offset_1 ^ ((offset_1 >> 3) & 56))], output + 4);
    const int offset_2 = (lane >> 4) * 8 + (lane & 15) * 64 + 32;
    stmatrix<4, false>(&q[warp * 1024 + (offset_2 ^ ((offset_2 >> 3) & 56))], output + 8);
    const int offset_3 = (lane >> 4) * 8 + (lane & 15) * 64 + 48;
    stmatrix<4, false>(&q[warp * 1024 + (offset_3 ^ ((offset_3 >> 3) & 56))], output + 12);
    fence_proxy_async();
    warpgroup_sync();
    if ((warp & 3) == 0 && lane == 0) {
      const int t_10 = (warp >> 2) * 64;
      tma_store_4d<false>(&q[0 * 8192 + 0 * 8192 + t_10 * 64 + 0], &Y_map, 0, t_10 - (cta & 1) * 128 + 128, 0, cta >> 1);
      tma_store_commit_group();
      tma_store_wait_group_read<0>();
      mbarrier_arrive(&empty[0]);
    }
  }
  if (warp >= 8) {
    setmaxnreg_dec<24>();
    if (warp == 8 && lane == 0) {
      mbarrier_wait(&empty[0], 1);
      mbarrier_arrive_expect_tx(&full[0], 16384);
      tma_load_4d<false>(&q[0 * 8192 + 0 * 8192 + 0 * 64 + 0], &Q_map, &full[0], 0, 128 - (cta & 1) * 128, 0, cta >> 1);
      mbarrier_wait(&empty_2[0], 1);
      mbarrier_arrive_expect_tx(&full_2[0], 8192);
      tma_load_3d<false>(&k_2[0 * 4096 + 0 * 4096 + 0 * 64 + 0], &K_map, &full_2[0], 0, 128, cta >> 1);
    }
    if (warp == 8 && lane == 0) {
      const int block_end_1 = (cta & 1) * 2;
      #pragma unroll 1
      for (int block = 0; block < 3 && block < block_end_1; ++block) {
        const int t_11 = block + 1;
        mbarrier_wait(&empty_2[t_11 & 1], 1 - (t_11 >> 1));
        mbarrier_arrive_expect_tx(&full_2[(block + 1) & 1], 8192);
        const int t_12 = (block + 1) & 1;
        tma_load_3d<false>(&k_2[t_12 * 4096 + 0 * 4096 + 0 * 64 + 0], &K_map, &full_2[t_12], 0, 64 - block * 64, cta >> 1);
        mbarrier_wait(&empty_3[block], 1);
        mbarrier_arrive_expect_tx(&full_3[block], 8192);
        tma_load_3d<false>(&v[block * 4096 + 0 * 4096 + 0 * 64 + 0], &V_map, &full_3[block], 0, 128 - block * 64, cta >> 1);
      }
    }
    if (warp == 8 && lane == 0) {
      const int block_2_end_1 = 2 - (cta & 1) * 2;
      #pragma unroll 1
      for (int block_2 = 0; block_2 < 3 && block_2 < block_2_end_1; ++block_2) {
        const int t_13 = block_2 + 1;
        mbarrier_wait(&empty_2[t_13 & 1], 1 - (((cta & 1) + (t_13 >> 1)) & 1));
        mbarrier_arrive_expect_tx(&full_2[(block_2 + 1) & 1], 8192);
        const int t_14 = (block_2 + 1) & 1;
        tma_load_3d<false>(&k_2[t_14 * 4096 + 0 * 4096 + 0 * 64 + 0], &K_map, &full_2[t_14], 0, 64 - block_2 * 64 - (cta & 1) * 128, cta >> 1);
        mbarrier_wait(&empty_3[block_2], 1 - (cta & 1));
        mbarrier_arrive_expect_tx(&full_3[block_2], 8192);
        tma_load_3d<false>(&v[block_2 * 4096 + 0 * 4096 + 0 * 64 + 0], &V_map, &full_3[block_2], 0, 128 - block_2 * 64 - (cta & 1) * 128, cta >> 1);
      }
    }
    if (warp == 8 && lane == 0) {
      mbarrier_wait(&empty_3[0], 0);
      mbarrier_arrive_expect_tx(&full_3[0], 8192);
      tma_load_3d<false>(&v[0 * 4096 + 0 * 4096 + 0 * 64 + 0], &V_map, &full_3[0], 0, 0, cta >> 1);
    }
  }
}
