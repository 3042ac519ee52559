// kernel for cuda sm_90a: tw_kernel<<<1, 288, 231576>>>

// converts N values that are packed in N / 2 words
template <int N> static __device__ __forceinline__ void unpack_half(const unsigned* words, float* x) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x[2 * i]), "=f"(x[2 * i + 1]) : "r"(words[i]));
}

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

// the same address as a pointer to a vector type, which moves several elements at once
template <typename T> static __device__ __forceinline__ T* recast(void* pointer) { return reinterpret_cast<T*>(pointer); }
template <typename T> static __device__ __forceinline__ const T* recast(const void* pointer) { return reinterpret_cast<const T*>(pointer); }

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

// starts to copy pixels at the positions of a window, each offset by a place of the window
template <bool EVICT_FIRST> static __device__ __forceinline__ void tma_load_im2col_4d(void* to, const TensorMap* map, long long* barrier,
    int c0, int c1, int c2, int c3, unsigned short o0, unsigned short o1) {
  if (EVICT_FIRST)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(o0), "h"(o1),
                    "l"(l2_evict_first()) : "memory");
  else
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(o0), "h"(o1)
                 : "memory");
}

// starts to copy a box from shared to global memory
template <bool EVICT_FIRST> static __device__ __forceinline__ void tma_store_2d(const void* from, const TensorMap* map, int c0, int c1) {
  if (EVICT_FIRST)
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%1, {%2, %3}], [%0], %4;"
                 :: "r"(smem_address(from)), "l"(map), "r"(c0), "r"(c1), "l"(l2_evict_first()) : "memory");
  else
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%1, {%2, %3}], [%0];"
                 :: "r"(smem_address(from)), "l"(map), "r"(c0), "r"(c1) : "memory");
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

// starts d += a * b, or d = a * b, where a is 64 x K and b is K x 48, in shared memory with the
// 128-byte swizzle; an operand is MN_MAJOR where it is contiguous along m or n, and not along k
template <int K, bool MN_MAJOR_A, bool MN_MAJOR_B> static __device__ __forceinline__ void wgmma_m64n48k16_f16(
    float* d, unsigned long long descriptor_a, unsigned long long descriptor_b, bool accumulate = true) {
  asm volatile("wgmma.fence.sync.aligned;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]) :: "memory");
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %26, 0; "
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, %24, %25, p, 1, 1, %27, %28; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]) : "l"(descriptor_a + (MN_MAJOR_A ? 128 : 2) * k),
                   "l"(descriptor_b + (MN_MAJOR_B ? 128 : 2) * k),
                   "r"(k > 0 || accumulate ? 1 : 0), "n"(MN_MAJOR_A), "n"(MN_MAJOR_B));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// waits until at most PENDING groups of this warpgroup, the youngest, are still in flight
template <int PENDING> static __device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// keeps the compiler from reading these accumulators earlier than here
template <int COUNT> static __device__ __forceinline__ void warpgroup_fence_operand(float* d) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}

// a named barrier of the 128 threads of this warpgroup
static __device__ __forceinline__ void warpgroup_sync() { asm volatile("bar.sync %0, 128;" :: "r"(1 + threadIdx.x / 128) : "memory"); }

extern "C" __global__ void __launch_bounds__(288, 1) tw_kernel(
    const unsigned short* B,
    const __grid_constant__ TensorMap Y_map,
    const __grid_constant__ TensorMap X_map,
    const __grid_constant__ TensorMap W_map) {
  const int warp = warp_index();
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char shared[];
  long long* const full = reinterpret_cast<long long*>(shared + 231424);
  long long* const empty = reinterpret_cast<long long*>(shared + 231504);
  unsigned short* const a = reinterpret_cast<unsigned short*>(shared + 0);
  unsigned short* const b = reinterpret_cast<unsigned short*>(shared + 147456);
  unsigned short* const staged_rest = reinterpret_cast<unsigned short*>(shared + 221184);
  if (threadIdx.x == 0) {
    prefetch_tensormap(&Y_map);
    prefetch_tensormap(&X_map);
    prefetch_tensormap(&W_map);
  }
  griddepcontrol_launch_dependents();
  __align__(16) float accumulators[24];
  if (warp == 8 && lane == 0) {
    #pragma unroll 1
    for (int stage = 0; stage < 9; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], 8);
    }
  }
  __syncthreads();
  griddepcontrol_wait();
  if (warp < 8) {
    #pragma unroll 1
    for (int k_iter = 0; k_iter < 9; ++k_iter) {
      mbarrier_wait(&full[k_iter], 0);
      wgmma_m64n48k16_f16<64, false, true>(accumulators, wgmma_descriptor(&a[k_iter * 8192 + 0 * 8192 + (warp >> 2) * 64 * 64 + 0]), wgmma_descriptor_mn_major<8192>(&b[k_iter * 4096 + 0 * 4096 + 0 * 4096 + 0 * 64 + 0]), k_iter >= 1);
      wgmma_wait_group<1>(); warpgroup_fence_operand<24>(accumulators);
      if (k_iter >= 1) {
        if (lane == 0) {
          mbarrier_arrive(&empty[k_iter - 1]);
        }
      }
    }
    __align__(16) unsigned source[5];
    #pragma unroll
    for (int source_pair = 0; source_pair < 5; ++source_pair) {
      *recast<unsigned>(&source[source_pair * 2 / 2]) = *recast<unsigned>(&B[source_pair * 8 + (lane & 3) * 2]);
    }
    wgmma_wait_group<0>(); warpgroup_fence_operand<24>(accumulators);
    if (lane == 0) {
      mbarrier_arrive(&empty[8]);
    }
    __align__(16) unsigned output[10];
    #pragma unroll
    for (int output_pair = 0; output_pair < 5; ++output_pair) {
      #pragma unroll
      for (int output_half = 0; output_half < 2; ++output_half) {
        float source_v[2];
        unpack_half<2>(source + output_pair * 2 / 2, source_v);
        float r[2];
        #pragma unroll
        for (int l_1 = 0; l_1 < 2; ++l_1) {
          r[l_1] = max_nan(accumulators[output_pair * 4 + output_half * 2 + l_1] + source_v[l_1], 0.0f);
        }
        pack_half<2>(r, output + (output_pair * 4 + output_half * 2) / 2);
      }
    }
    if ((warp & 3) == 0 && lane == 0) {
      tma_store_wait_group_read<0>();
    }
    warpgroup_sync();
    #pragma unroll
    for (int matrix = 0; matrix < 2; ++matrix) {
      stmatrix<4, false>(&staged_rest[matrix * 16 + (lane >> 4) * 8 + warp * 640 + (lane & 15) * 40], output + matrix * 8 / 2);
    }
    stmatrix<2, false>(&staged_rest[warp * 640 + (lane & 15) * 40 + 32], output + 8);
    fence_proxy_async();
    warpgroup_sync();
    if ((warp & 3) == 0 && lane == 0) {
      const int t = warp >> 2;
      tma_store_2d<false>(&staged_rest[t * 2560 + 0 * 2560 + 0 * 40 + 0], &Y_map, 0, t * 40);
      tma_store_commit_group();
    }
    if ((warp & 3) == 0 && lane == 0) {
      tma_store_wait_group_read<0>();
    }
  }
  if (warp >= 8) {
    if (lane == 0) {
      #pragma unroll 1
      for (int k_iter = 0; k_iter < 9; ++k_iter) {
        mbarrier_wait(&empty[k_iter], 1);
        mbarrier_arrive_expect_tx(&full[k_iter], 24576);
        tma_load_im2col_4d<false>(&a[k_iter * 8192 + 0 * 8192 + 0 * 64 + 0], &X_map, &full[k_iter], 0, -1, -1, 0, (int)((unsigned)k_iter % (unsigned)3), (int)((unsigned)k_iter / (unsigned)3));
        tma_load_3d<false>(&b[k_iter * 4096 + 0 * 4096 + 0 * 4096 + 0 * 64 + 0], &W_map, &full[k_iter], 0, 0, k_iter);
      }
    }
  }
}
