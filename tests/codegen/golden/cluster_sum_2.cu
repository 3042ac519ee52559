// cluster_sum for cuda sm_90a: tw_cluster_sum<<<6, 64, 272>>>

// several elements as what moves them at once
template <typename T> static __device__ __forceinline__ T* as(void* place) { return reinterpret_cast<T*>(place); }
template <typename T> static __device__ __forceinline__ const T* as(const void* place) { return reinterpret_cast<const T*>(place); }

// the next launch may send blocks where there is room
static __device__ __forceinline__ void let_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// from here on, all that earlier launches wrote is there
static __device__ __forceinline__ void await_earlier_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

static __device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// from the shared memory of another block of the cluster
static __device__ __forceinline__ uint4 cluster_load(const uint4* from, unsigned block) {
  uint4 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [a]; }"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
static __device__ __forceinline__ uint2 cluster_load(const uint2* from, unsigned block) {
  uint2 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %2, %3; ld.shared::cluster.v2.u32 {%0, %1}, [a]; }"
               : "=r"(x.x), "=r"(x.y) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
static __device__ __forceinline__ unsigned cluster_load(const unsigned* from, unsigned block) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u32 %0, [a]; }"
               : "=r"(x) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
static __device__ __forceinline__ unsigned short cluster_load(const unsigned short* from, unsigned block) {
  unsigned short x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u16 %0, [a]; }"
               : "=h"(x) : "r"(shared_address(from)), "r"(block) : "memory");
  return x;
}
static __device__ __forceinline__ unsigned char cluster_load(const unsigned char* from, unsigned block) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u8 %0, [a]; }"
               : "=r"(x) : "r"(shared_address(from)), "r"(block) : "memory");
  return (unsigned char)x;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64) tw_cluster_sum(
    const float* A,
    float* __restrict__ O) {
  const int row = blockIdx.x / 2;
  const int rank = blockIdx.x % 2;
  const int t = threadIdx.x;
  extern __shared__ __align__(16) unsigned char shared[];
  float* const parts = reinterpret_cast<float*>(shared + 0);
  float* const sums = reinterpret_cast<float*>(shared + 256);
  let_next_launch();
  await_earlier_launch();
  parts[t] = A[row * 128 + rank * 64 + t];
  __syncthreads();
  if (t < 4) {
    __align__(16) float parts_v[16];
    *as<uint4>(&parts_v[0]) = *as<uint4>(&parts[t * 16]);
    *as<uint4>(&parts_v[4]) = *as<uint4>(&parts[t * 16 + 4]);
    *as<uint4>(&parts_v[8]) = *as<uint4>(&parts[t * 16 + 8]);
    *as<uint4>(&parts_v[12]) = *as<uint4>(&parts[t * 16 + 12]);
    float part[16];
    #pragma unroll
    for (int l = 0; l < 16; ++l) {
      part[l] = parts_v[l];
    }
    #pragma unroll
    for (int half = 8; half > 0; half /= 2) {
      #pragma unroll
      for (int l_1 = 0; l_1 < half; ++l_1) {
        part[l_1] = part[l_1] + part[l_1 + half];
      }
    }
    sums[t] = part[0];
  }
  cluster_barrier();
  if (t < 1) {
    __align__(16) float total[4];
    #pragma unroll
    for (int l_2 = 0; l_2 < 4; ++l_2) {
      total[l_2] = 0.0f;
    }
    for (int other = 0; other < 2; ++other) {
      __align__(16) float sums_v[4];
      *as<uint4>(&sums_v[0]) = cluster_load(as<uint4>(&sums[0]), other);
      #pragma unroll
      for (int l_3 = 0; l_3 < 4; ++l_3) {
        total[l_3] = total[l_3] + sums_v[l_3];
      }
    }
    float peer_sums;
    *as<unsigned>(&peer_sums) = cluster_load(as<unsigned>(&sums[1]), (rank + 1) & 1);
    const float sums_1 = peer_sums;
    __align__(16) float r[4];
    #pragma unroll
    for (int l_4 = 0; l_4 < 4; ++l_4) {
      r[l_4] = total[l_4] + sums_1;
    }
    *as<uint4>(&O[row * 8 + rank * 4]) = *as<uint4>(&r[0]);
  }
  cluster_barrier();
}
