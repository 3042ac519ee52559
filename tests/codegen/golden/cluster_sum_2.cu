// cluster_sum for cuda sm_90a: tw_cluster_sum<<<6, 64, 272>>>

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

// the same address as a pointer to a vector type, which moves several elements at once
template <typename T> static __device__ __forceinline__ T* recast(void* pointer) { return reinterpret_cast<T*>(pointer); }
template <typename T> static __device__ __forceinline__ const T* recast(const void* pointer) { return reinterpret_cast<const T*>(pointer); }

// the same number, of which the compiler knows nothing: constants that an instruction could add stay outside
static __device__ __forceinline__ int opaque(int number) { asm("" : "+r"(number)); return number; }

static __device__ __forceinline__ unsigned smem_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

static __device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// loads from the same address in the shared memory of another CTA of the cluster
static __device__ __forceinline__ uint4 ld_shared_cluster(const uint4* from, unsigned cta) {
  uint4 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [a]; }"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(smem_address(from)), "r"(cta) : "memory");
  return x;
}
static __device__ __forceinline__ uint2 ld_shared_cluster(const uint2* from, unsigned cta) {
  uint2 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %2, %3; ld.shared::cluster.v2.u32 {%0, %1}, [a]; }"
               : "=r"(x.x), "=r"(x.y) : "r"(smem_address(from)), "r"(cta) : "memory");
  return x;
}
static __device__ __forceinline__ unsigned ld_shared_cluster(const unsigned* from, unsigned cta) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u32 %0, [a]; }"
               : "=r"(x) : "r"(smem_address(from)), "r"(cta) : "memory");
  return x;
}
static __device__ __forceinline__ unsigned short ld_shared_cluster(const unsigned short* from, unsigned cta) {
  unsigned short x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u16 %0, [a]; }"
               : "=h"(x) : "r"(smem_address(from)), "r"(cta) : "memory");
  return x;
}
static __device__ __forceinline__ unsigned char ld_shared_cluster(const unsigned char* from, unsigned cta) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u8 %0, [a]; }"
               : "=r"(x) : "r"(smem_address(from)), "r"(cta) : "memory");
  return (unsigned char)x;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64) tw_cluster_sum(
    const float* A,
    float* __restrict__ O) {
  const int row = blockIdx.x / 2;
  const int rank = blockIdx.x % 2;
  const int t = threadIdx.x;
  extern __shared__ __align__(16) unsigned char shared[];
  float* const values = reinterpret_cast<float*>(shared + 0);
  float* const partials = reinterpret_cast<float*>(shared + 256);
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  values[t] = A[row * 128 + rank * 64 + t];
  __syncthreads();
  if (t < 4) {
    __align__(16) float values_v[16];
    *recast<uint4>(&values_v[0]) = *recast<uint4>(&values[t * 16]);
    *recast<uint4>(&values_v[4]) = *recast<uint4>(&values[opaque(t * 16)] + 4);
    *recast<uint4>(&values_v[8]) = *recast<uint4>(&values[opaque(t * 16)] + 8);
    *recast<uint4>(&values_v[12]) = *recast<uint4>(&values[opaque(t * 16)] + 12);
    float partial[16];
    #pragma unroll
    for (int l = 0; l < 16; ++l) {
      partial[l] = values_v[l];
    }
    #pragma unroll
    for (int stride = 8; stride > 0; stride /= 2) {
      #pragma unroll
      for (int l_1 = 0; l_1 < stride; ++l_1) {
        partial[l_1] = partial[l_1] + partial[l_1 + stride];
      }
    }
    partials[t] = partial[0];
  }
  cluster_sync();
  if (t < 1) {
    __align__(16) float total[4];
    #pragma unroll
    for (int l_2 = 0; l_2 < 4; ++l_2) {
      total[l_2] = 0.0f;
    }
    for (int other = 0; other < 2; ++other) {
      __align__(16) float partials_v[4];
      *recast<uint4>(&partials_v[0]) = ld_shared_cluster(recast<uint4>(&partials[0]), other);
      #pragma unroll
      for (int l_3 = 0; l_3 < 4; ++l_3) {
        total[l_3] = total[l_3] + partials_v[l_3];
      }
    }
    float remote_partials;
    *recast<unsigned>(&remote_partials) = ld_shared_cluster(recast<unsigned>(&partials[1]), (rank + 1) & 1);
    const float partials_1 = remote_partials;
    __align__(16) float r[4];
    #pragma unroll
    for (int l_4 = 0; l_4 < 4; ++l_4) {
      r[l_4] = total[l_4] + partials_1;
    }
    *recast<uint4>(&O[row * 8 + rank * 4]) = *recast<uint4>(&r[0]);
  }
  cluster_sync();
}
