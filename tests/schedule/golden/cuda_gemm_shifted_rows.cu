// kernel for cuda sm_90a: tw_kernel<<<79, 256, 213088>>>

// converts N values and packs them into N / 2 words
template <int N> static __device__ __forceinline__ void pack_half(const float* x, unsigned* words) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(words[i]) : "f"(x[2 * i]), "f"(x[2 * i + 1]));
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

// the same address as a pointer to a vector type, which moves several elements at once
template <typename T> static __device__ __forceinline__ T* recast(void* pointer) { return reinterpret_cast<T*>(pointer); }
template <typename T> static __device__ __forceinline__ const T* recast(const void* pointer) { return reinterpret_cast<const T*>(pointer); }

// brings the cache line of an address into L2
static __device__ __forceinline__ void prefetch_l2_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(from)));
}

// gives zeros and reads nothing where the predicate is false
static __device__ __forceinline__ uint4 ld_global_if(const uint4* from, bool predicate) {
  uint4 x;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0;"
      " mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)predicate));
  return x;
}
static __device__ __forceinline__ uint2 ld_global_if(const uint2* from, bool predicate) {
  uint2 x;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
      " @p ld.global.v2.u32 {%0, %1}, [%2]; }"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)predicate));
  return x;
}
static __device__ __forceinline__ unsigned ld_global_if(const unsigned* from, bool predicate) {
  unsigned x;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.u32 %0, [%1]; }"
      : "=r"(x) : "l"(__cvta_generic_to_global(from)), "r"((unsigned)predicate));
  return x;
}

// the first COUNT of 8 elements from OFFSET + STEP on, and zeros for the others, or for all where not ANY;
// STEP is a multiple of 8 that is known once loops are unrolled; what lies beyond the last whole chunk, which
// ends at END, is not read and becomes zeros, too
template <typename I, typename S, typename E>
static __device__ __forceinline__ uint4 load_unaligned_x8_first(const unsigned short* from, I offset, S step, bool any, long long count, E end) {
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
}

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
template <bool EVICT_FIRST> static __device__ __forceinline__ void tma_load_2d(void* to, const TensorMap* map, long long* barrier, int c0, int c1) {
  if (EVICT_FIRST)
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "l"(l2_evict_first())
                 : "memory");
  else
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1) : "memory");
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

// starts d += a * b, or d = a * b, where a is 64 x K and b is K x 128, in shared memory with the
// 128-byte swizzle; an operand is MN_MAJOR where it is contiguous along m or n, and not along k
template <int K, bool MN_MAJOR_A, bool MN_MAJOR_B> static __device__ __forceinline__ void wgmma_m64n128k16_f16(
    float* d, unsigned long long descriptor_a, unsigned long long descriptor_b, bool accumulate = true) {
  asm volatile("wgmma.fence.sync.aligned;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) :: "memory");
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, %67, %68; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) : "l"(descriptor_a + (MN_MAJOR_A ? 128 : 2) * k),
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

extern "C" __global__ void __launch_bounds__(256, 1) tw_kernel(
    const unsigned short* A,
    const __grid_constant__ TensorMap C_map,
    const __grid_constant__ TensorMap B_map) {
  const int cluster = blockIdx.x;
  const int warp = warp_index();
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char shared[];
  long long* const full = reinterpret_cast<long long*>(shared + 212992);
  long long* const empty = reinterpret_cast<long long*>(shared + 213040);
  unsigned short* const a = reinterpret_cast<unsigned short*>(shared + 0);
  unsigned short* const b = reinterpret_cast<unsigned short*>(shared + 98304);
  unsigned short* const staged = reinterpret_cast<unsigned short*>(shared + 196608);
  if (threadIdx.x == 0) {
    prefetch_tensormap(&C_map);
    prefetch_tensormap(&B_map);
  }
  griddepcontrol_launch_dependents();
  __align__(16) float accumulators[128];
  if (warp == 4 && lane == 0) {
    #pragma unroll 1
    for (int stage = 0; stage < 6; ++stage) {
      mbarrier_init(&full[stage], 5);
      mbarrier_init(&empty[stage], 4);
    }
  }
  __syncthreads();
  griddepcontrol_wait();
  if (warp < 4) {
    #pragma unroll 1
    for (int tile_iteration = 0; tile_iteration < 2; ++tile_iteration) {
      if (tile_iteration * 79 + cluster < 157) {
        #pragma unroll 1
        for (int k_iter = 0; k_iter < 16; ++k_iter) {
          mbarrier_wait(&full[(int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6)], (int)((unsigned)(tile_iteration * 16 + k_iter) / (unsigned)6) & 1);
          const int t = (int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6);
          wgmma_m64n128k16_f16<64, false, true>(accumulators, wgmma_descriptor(&a[t * 8192 + 0 * 8192 + 0 * 64 + 0]), wgmma_descriptor_mn_major<8192>(&b[t * 8192 + 0 * 8192 + 0 * 4096 + 0 * 64 + 0]), k_iter >= 1);
          const int t_1 = (int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6);
          wgmma_m64n128k16_f16<64, false, true>(accumulators + 64, wgmma_descriptor(&a[t_1 * 8192 + 0 * 8192 + 64 * 64 + 0]), wgmma_descriptor_mn_major<8192>(&b[t_1 * 8192 + 0 * 8192 + 0 * 4096 + 0 * 64 + 0]), k_iter >= 1);
          wgmma_wait_group<2>(); warpgroup_fence_operand<128>(accumulators);
          if (k_iter >= 1) {
            if (lane == 0) {
              mbarrier_arrive(&empty[(int)((unsigned)(tile_iteration * 4 + k_iter + 5) % (unsigned)6)]);
            }
          }
        }
        wgmma_wait_group<0>(); warpgroup_fence_operand<128>(accumulators);
        if (lane == 0) {
          mbarrier_arrive(&empty[(int)((unsigned)(tile_iteration * 2 + 1) % (unsigned)3) * 2 + 1]);
        }
        __align__(16) unsigned output[16];
        #pragma unroll
        for (int output_pair = 0; output_pair < 8; ++output_pair) {
          #pragma unroll
          for (int output_half = 0; output_half < 2; ++output_half) {
            float r[2];
            #pragma unroll
            for (int l_1 = 0; l_1 < 2; ++l_1) {
              r[l_1] = accumulators[output_pair * 4 + output_half * 2 + l_1];
            }
            pack_half<2>(r, output + (output_pair * 4 + output_half * 2) / 2);
          }
        }
        if (warp == 0 && lane == 0) {
          tma_store_wait_group_read<0>();
        }
        warpgroup_sync();
        #pragma unroll
        for (int matrix = 0; matrix < 4; ++matrix) {
          const int offset = matrix * 16 + (lane >> 4) * 8 + (lane & 15) * 64;
          stmatrix<4, false>(&staged[warp * 1024 + (offset ^ ((offset >> 3) & 56))], output + matrix * 8 / 2);
        }
        fence_proxy_async();
        warpgroup_sync();
        if (warp == 0 && lane == 0) {
          const int t_2 = tile_iteration * 79 + cluster;
          tma_store_2d<false>(&staged[0 * 8192 + 0 * 4096 + 0 * 64 + 0], &C_map, 0, (t_2 >= 152 ? (int)((unsigned)(t_2 + 3) / (unsigned)5) * 5 + (int)((unsigned)(tile_iteration * 4 + cluster + 3) % (unsigned)5) - 3 : (t_2 >> 3) * 8 + ((tile_iteration * 7 + cluster) & 7)) * 128);
          tma_store_commit_group();
        }
        __align__(16) unsigned output_2[16];
        #pragma unroll
        for (int output_pair_2 = 0; output_pair_2 < 8; ++output_pair_2) {
          #pragma unroll
          for (int output_half_2 = 0; output_half_2 < 2; ++output_half_2) {
            float r_1[2];
            #pragma unroll
            for (int l_3 = 0; l_3 < 2; ++l_3) {
              r_1[l_3] = accumulators[output_pair_2 * 4 + output_half_2 * 2 + 64 + l_3];
            }
            pack_half<2>(r_1, output_2 + (output_pair_2 * 4 + output_half_2 * 2) / 2);
          }
        }
        #pragma unroll
        for (int matrix_2 = 0; matrix_2 < 4; ++matrix_2) {
          const int offset_1 = matrix_2 * 16 + (lane >> 4) * 8 + (lane & 15) * 64;
          stmatrix<4, false>(&staged[warp * 1024 + 4096 + (offset_1 ^ ((offset_1 >> 3) & 56))], output_2 + matrix_2 * 8 / 2);
        }
        fence_proxy_async();
        warpgroup_sync();
        if (warp == 0 && lane == 0) {
          const int t_3 = tile_iteration * 79 + cluster;
          tma_store_2d<false>(&staged[0 * 8192 + 1 * 4096 + 0 * 64 + 0], &C_map, 0, (t_3 >= 152 ? (int)((unsigned)(t_3 + 3) / (unsigned)5) * 5 + (int)((unsigned)(tile_iteration * 4 + cluster + 3) % (unsigned)5) - 3 : (t_3 >> 3) * 8 + ((tile_iteration * 7 + cluster) & 7)) * 128 + 64);
          tma_store_commit_group();
        }
        __align__(16) unsigned output_3[16];
        #pragma unroll
        for (int output_pair_3 = 0; output_pair_3 < 8; ++output_pair_3) {
          #pragma unroll
          for (int output_half_3 = 0; output_half_3 < 2; ++output_half_3) {
            float r_2[2];
            #pragma unroll
            for (int l_5 = 0; l_5 < 2; ++l_5) {
              r_2[l_5] = accumulators[output_pair_3 * 4 + output_half_3 * 2 + 32 + l_5];
            }
            pack_half<2>(r_2, output_3 + (output_pair_3 * 4 + output_half_3 * 2) / 2);
          }
        }
        if (warp == 0 && lane == 0) {
          tma_store_wait_group_read<1>();
        }
        warpgroup_sync();
        #pragma unroll
        for (int matrix_3 = 0; matrix_3 < 4; ++matrix_3) {
          const int offset_2 = matrix_3 * 16 + (lane >> 4) * 8 + (lane & 15) * 64;
          stmatrix<4, false>(&staged[warp * 1024 + (offset_2 ^ ((offset_2 >> 3) & 56))], output_3 + matrix_3 * 8 / 2);
        }
        fence_proxy_async();
        warpgroup_sync();
        if (warp == 0 && lane == 0) {
          const int t_4 = tile_iteration * 79 + cluster;
          tma_store_2d<false>(&staged[0 * 8192 + 0 * 4096 + 0 * 64 + 0], &C_map, 64, (t_4 >= 152 ? (int)((unsigned)(t_4 + 3) / (unsigned)5) * 5 + (int)((unsigned)(tile_iteration * 4 + cluster + 3) % (unsigned)5) - 3 : (t_4 >> 3) * 8 + ((tile_iteration * 7 + cluster) & 7)) * 128);
          tma_store_commit_group();
        }
        __align__(16) unsigned output_4[16];
        #pragma unroll
        for (int output_pair_4 = 0; output_pair_4 < 8; ++output_pair_4) {
          #pragma unroll
          for (int output_half_4 = 0; output_half_4 < 2; ++output_half_4) {
            float r_3[2];
            #pragma unroll
            for (int l_7 = 0; l_7 < 2; ++l_7) {
              r_3[l_7] = accumulators[output_pair_4 * 4 + output_half_4 * 2 + 96 + l_7];
            }
            pack_half<2>(r_3, output_4 + (output_pair_4 * 4 + output_half_4 * 2) / 2);
          }
        }
        if (warp == 0 && lane == 0) {
          tma_store_wait_group_read<1>();
        }
        warpgroup_sync();
        #pragma unroll
        for (int matrix_4 = 0; matrix_4 < 4; ++matrix_4) {
          const int offset_3 = matrix_4 * 16 + (lane >> 4) * 8 + (lane & 15) * 64;
          stmatrix<4, false>(&staged[warp * 1024 + 4096 + (offset_3 ^ ((offset_3 >> 3) & 56))], output_4 + matrix_4 * 8 / 2);
        }
        fence_proxy_async();
        warpgroup_sync();
        if (warp == 0 && lane == 0) {
          const int t_5 = tile_iteration * 79 + cluster;
          tma_store_2d<false>(&staged[0 * 8192 + 1 * 4096 + 0 * 64 + 0], &C_map, 64, (t_5 >= 152 ? (int)((unsigned)(t_5 + 3) / (unsigned)5) * 5 + (int)((unsigned)(tile_iteration * 4 + cluster + 3) % (unsigned)5) - 3 : (t_5 >> 3) * 8 + ((tile_iteration * 7 + cluster) & 7)) * 128 + 64);
          tma_store_commit_group();
        }
      }
    }
    if (warp == 0 && lane == 0) {
      tma_store_wait_group_read<0>();
    }
  }
  if (warp >= 4) {
    #pragma unroll 1
    for (int tile_iteration = 0; tile_iteration < 2; ++tile_iteration) {
      if (tile_iteration * 79 + cluster < 157) {
        #pragma unroll 1
        for (int k_iter = 0; k_iter < 16; ++k_iter) {
          __align__(16) unsigned moved[32];
          #pragma unroll
          for (int vector = 0; vector < 8; ++vector) {
            const int t_6 = tile_iteration * 79 + cluster;
            const int t_7 = t_6 + 3;
            const int t_8 = t_6 >= 152 ? (int)((unsigned)t_7 / (unsigned)5) * 5 + (int)((unsigned)t_7 % (unsigned)5) - 3 : (t_6 >> 3) * 8 + ((tile_iteration * 7 + cluster) & 7);
            *recast<uint4>(&moved[vector * 8 / 2]) = load_unaligned_x8_first(A, t_8 * 128128 + k_iter * 64 + warp * 4004 + (lane >> 3) * 1001 + (lane & 7) * 8, vector * 16016 - 16016, vector * 4 + warp + t_8 * 32 < 5004, 1001 - (lane & 7) * 8 - k_iter * 64, 20020000);
          }
          const int t_9 = tile_iteration * 79 + cluster;
          if (warp + (t_9 >= 152 ? (int)((unsigned)(t_9 + 3) / (unsigned)5) * 5 + (int)((unsigned)(tile_iteration * 4 + cluster + 3) % (unsigned)5) - 3 : (t_9 >> 3) * 8 + ((tile_iteration * 7 + cluster) & 7)) * 4 < 629 && k_iter < 13) {
            const int t_10 = tile_iteration * 79 + cluster;
            const int t_11 = k_iter * 64;
            prefetch_l2_line(&A[(t_10 >= 152 ? (int)((unsigned)(t_10 + 3) / (unsigned)5) * 5 + (int)((unsigned)(tile_iteration * 4 + cluster + 3) % (unsigned)5) - 3 : (t_10 >> 3) * 8 + ((tile_iteration * 7 + cluster) & 7)) * 128128 + k_iter * 64 + warp * 32032 + lane * 1001 + min(256, 1001 - t_11) - 128129]);
          }
          mbarrier_wait(&empty[(int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6)], 1 - ((int)((unsigned)(tile_iteration * 16 + k_iter) / (unsigned)6) & 1));
          if (warp == 4 && lane == 0) {
            mbarrier_arrive_expect_tx(&full[(int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6)], 16384);
            const int t_12 = (int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6);
            tma_load_2d<false>(&b[t_12 * 8192 + 0 * 8192 + 0 * 4096 + 0 * 64 + 0], &B_map, &full[t_12], 0, k_iter * 64);
            const int t_13 = (int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6);
            tma_load_2d<false>(&b[t_13 * 8192 + 0 * 8192 + 1 * 4096 + 0 * 64 + 0], &B_map, &full[t_13], 64, k_iter * 64);
          }
          #pragma unroll
          for (int vector_2 = 0; vector_2 < 8; ++vector_2) {
            const int offset_4 = warp * 256 + lane * 8;
            *recast<uint4>(&a[(int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6) * 8192 + vector_2 * 1024 - 1024 + (offset_4 ^ ((offset_4 >> 3) & 56))]) = *recast<uint4>(&moved[vector_2 * 8 / 2]);
          }
          fence_proxy_async();
          __syncwarp();
          if (lane == 0) {
            mbarrier_arrive(&full[(int)((unsigned)(tile_iteration * 4 + k_iter) % (unsigned)6)]);
          }
        }
      }
    }
  }
}
