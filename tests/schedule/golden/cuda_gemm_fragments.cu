// kernel for cuda sm_90a: tw_kernel<<<4, 160, 26656>>>

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

// brings a box into L2, where what earlier launches still write is seen, too
static __device__ __forceinline__ void tma_prefetch_2d(const TensorMap* map, int c0, int c1) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
               :: "l"(map), "r"(c0), "r"(c1) : "memory");
}

// describes a K-major operand: rows of 128 bytes along k, groups of 8 rows 1024 bytes apart
static __device__ __forceinline__ unsigned long long wgmma_descriptor(const void* tile) {
  return (smem_address(tile) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// starts d += a * b, or d = a * b, where a is 64 x K, in registers, and b is as above
template <int K> static __device__ __forceinline__ void wgmma_m64n40k8_tf32_register_a(
    float* d, const float* a, unsigned long long descriptor_b, bool accumulate = true) {
  asm volatile("wgmma.fence.sync.aligned;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]) :: "memory");
#pragma unroll
  for (int k = 0; k < K / 8; ++k)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %25, 0; "
                 "wgmma.mma_async.sync.aligned.m64n40k8.f32.tf32.tf32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, {%20, %21, %22, %23}, %24, p, 1, 1; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]) : "r"(__float_as_uint(a[4 * k])), "r"(__float_as_uint(a[4 * k + 1])), "r"(__float_as_uint(a[4 * k + 2])), "r"(__float_as_uint(a[4 * k + 3])),
                   "l"(descriptor_b + 2 * k),
                   "r"(k > 0 || accumulate ? 1 : 0));
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

extern "C" __global__ void __launch_bounds__(160, 1) tw_kernel(
    float* __restrict__ C,
    const __grid_constant__ TensorMap B_map,
    const __grid_constant__ TensorMap A_map,
    const __grid_constant__ TensorMap A_map_1) {
  const int cluster = blockIdx.x;
  const int warp = warp_index();
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char shared[];
  long long* const full = reinterpret_cast<long long*>(shared + 26624);
  long long* const empty = reinterpret_cast<long long*>(shared + 26640);
  float* const a = reinterpret_cast<float*>(shared + 0);
  float* const b = reinterpret_cast<float*>(shared + 16384);
  if (threadIdx.x == 0) {
    prefetch_tensormap(&B_map);
    prefetch_tensormap(&A_map);
    prefetch_tensormap(&A_map_1);
  }
  griddepcontrol_launch_dependents();
  __align__(16) float accumulators[20];
  __align__(16) float fragments[16];
  if (warp == 4 && lane == 0) {
    tma_prefetch_2d(&B_map, (cluster & 1) * 64, (cluster >> 1) * 32);
    tma_prefetch_2d(&B_map, (cluster & 1) * 64 + 32, (cluster >> 1) * 32);
    tma_prefetch_2d(&A_map, (cluster & 1) * 32, (cluster >> 1) * 40);
  }
  if (warp == 4 && lane == 0) {
    #pragma unroll 1
    for (int stage = 0; stage < 2; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], 4);
    }
  }
  __syncthreads();
  griddepcontrol_wait();
  if (warp < 4) {
    #pragma unroll 1
    for (int k_iter = 0; k_iter < 2; ++k_iter) {
      mbarrier_wait(&full[k_iter], 0);
      wgmma_wait_group<1>(); warpgroup_fence_operand<20>(accumulators);
      #pragma unroll
      for (int step = 0; step < 2; ++step) {
        #pragma unroll
        for (int k_half = 0; k_half < 2; ++k_half) {
          const int offset = k_half * 128 + (lane & 3) * 32 + ((lane >> 3) & 1) * 16 + (warp & 1) * 8 + (lane >> 4) * 4 + ((lane >> 2) & 1) * 2;
          *recast<uint2>(&fragments[step * 4 + k_half * 2]) = *recast<uint2>(&a[k_iter * 2048 + (warp >> 1) * 1024 + step * 256 + (offset ^ ((offset >> 3) & 28))]);
        }
      }
      wgmma_m64n40k8_tf32_register_a<16>(accumulators, fragments, wgmma_descriptor(&b[k_iter * 1280 + 0 * 1280 + 0 * 32 + 0]), k_iter >= 1);
      wgmma_wait_group<1>(); warpgroup_fence_operand<20>(accumulators);
      if (k_iter >= 1) {
        if (lane == 0) {
          mbarrier_arrive(&empty[0]);
        }
      }
      #pragma unroll
      for (int step_2 = 0; step_2 < 2; ++step_2) {
        #pragma unroll
        for (int k_half_2 = 0; k_half_2 < 2; ++k_half_2) {
          const int offset_1 = k_half_2 * 128 + (lane & 3) * 32 + ((lane >> 3) & 1) * 16 + (warp & 1) * 8 + (lane >> 4) * 4 + ((lane >> 2) & 1) * 2;
          *recast<uint2>(&fragments[step_2 * 4 + k_half_2 * 2 + 8]) = *recast<uint2>(&a[k_iter * 2048 + (warp >> 1) * 1024 + step_2 * 256 + 512 + (offset_1 ^ ((offset_1 >> 3) & 28))]);
        }
      }
      wgmma_m64n40k8_tf32_register_a<16>(accumulators, fragments + 8, wgmma_descriptor(&b[k_iter * 1280 + 0 * 1280 + 0 * 32 + 16]));
    }
    wgmma_wait_group<0>(); warpgroup_fence_operand<20>(accumulators);
    if (lane == 0) {
      mbarrier_arrive(&empty[1]);
    }
    #pragma unroll
    for (int pair = 0; pair < 5; ++pair) {
      #pragma unroll
      for (int column = 0; column < 2; ++column) {
        if ((cluster >> 1) * 5 + pair < 9) {
          __align__(8) float output[2];
          #pragma unroll
          for (int row = 0; row < 2; ++row) {
            output[row] = accumulators[pair * 4 + column + row * 2];
          }
          *recast<uint2>(&C[(cluster >> 1) * 5120 + pair * 1024 + (lane & 3) * 256 + column * 128 + (cluster & 1) * 64 + (warp >> 1) * 32 + ((lane >> 3) & 1) * 16 + (warp & 1) * 8 + (lane >> 4) * 4 + ((lane >> 2) & 1) * 2]) = *recast<uint2>(&output[0]);
        }
      }
    }
  }
  if (warp >= 4) {
    if (lane == 0) {
      #pragma unroll 1
      for (int k_iter = 0; k_iter < 2; ++k_iter) {
        mbarrier_wait(&empty[k_iter], 1);
        mbarrier_arrive_expect_tx(&full[k_iter], min(72 - (cluster >> 1) * 40, 40) * 128 + 8192);
        tma_load_2d<false>(&a[k_iter * 2048 + 0 * 2048 + 0 * 1024 + 0 * 32 + 0], &B_map, &full[k_iter], (cluster & 1) * 64, k_iter * 32);
        tma_load_2d<false>(&a[k_iter * 2048 + 0 * 2048 + 1 * 1024 + 0 * 32 + 0], &B_map, &full[k_iter], (cluster & 1) * 64 + 32, k_iter * 32);
        if (cluster >> 1 < 1) {
          tma_load_2d<false>(&b[k_iter * 1280 + 0 * 1280 + 0 * 32 + 0], &A_map, &full[k_iter], k_iter * 32, (cluster >> 1) * 40);
        }
        if (cluster >> 1 >= 1) {
          tma_load_2d<false>(&b[k_iter * 1280 + 0 * 1280 + 0 * 32 + 0], &A_map_1, &full[k_iter], k_iter * 32, (cluster >> 1) * 40);
        }
      }
    }
  }
}
