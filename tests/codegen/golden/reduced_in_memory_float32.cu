// reduced_in_memory for cuda sm_90a: tw_start<<<1, 2, 0>>>, tw_reduce<<<4, 768, 128>>>

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

// NaN wins. atomicMax of int is right where the sign is clear, and atomicMin of unsigned where it is set
static __device__ __forceinline__ void atomic_max(int* to, int x) { atomicMax(to, x); }
static __device__ __forceinline__ void atomic_max(long long* to, long long x) { atomicMax(to, x); }
static __device__ __forceinline__ void atomic_max(float* to, float x) {
  const int bits = x != x ? 0x7fffffff : __float_as_int(x);
  if (bits >= 0) atomicMax(reinterpret_cast<int*>(to), bits);
  else atomicMin(reinterpret_cast<unsigned*>(to), (unsigned)bits);
}

// NaN wins. atomicMin of int is right where the sign is clear, and atomicMax of unsigned where it is set
static __device__ __forceinline__ void atomic_min(int* to, int x) { atomicMin(to, x); }
static __device__ __forceinline__ void atomic_min(long long* to, long long x) { atomicMin(to, x); }
static __device__ __forceinline__ void atomic_min(float* to, float x) {
  const int bits = x != x ? -1 : __float_as_int(x);
  if (bits >= 0) atomicMin(reinterpret_cast<int*>(to), bits);
  else atomicMax(reinterpret_cast<unsigned*>(to), (unsigned)bits);
}

extern "C" __global__ void __launch_bounds__(2) tw_start(
    float* __restrict__ O) {
  const int row = threadIdx.x;
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  for (int c = 0; c < 16; ++c) {
    O[row * 16 + c] = 3.0f;
  }
}

extern "C" __global__ void __launch_bounds__(768) tw_reduce(
    const float* A,
    float* __restrict__ O) {
  const int b = blockIdx.x;
  const int t = threadIdx.x;
  extern __shared__ __align__(16) unsigned char shared[];
  float* const own = reinterpret_cast<float*>(shared + 0);
  griddepcontrol_launch_dependents();
  if (t < 16) {
    own[t] = 3.0f;
    own[t + 16] = 3.0f;
  }
  __syncthreads();
  griddepcontrol_wait();
  atomic_min(&own[t & 15], A[b * 768 + t]);
  atomic_max(&own[(t & 15) + 16], A[b * 768 + t]);
  __syncthreads();
  if (t < 16) {
    atomic_min(&O[t], own[t]);
    atomic_max(&O[t + 16], own[t + 16]);
  }
}
