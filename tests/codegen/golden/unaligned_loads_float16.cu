// unaligned_loads for cuda sm_90a: tw_unaligned_loads<<<1, 27, 0>>>

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

// loads 2 * WORDS contiguous elements, which may begin in the middle of a word: loads words and shifts them
template <int WORDS> static __device__ __forceinline__ void load_unaligned(unsigned* to, const unsigned short* from, int offset) {
  const unsigned* words = reinterpret_cast<const unsigned*>(from) + (offset >> 1);
  const int odd = offset & 1;
  unsigned x[WORDS + 1];
  #pragma unroll
  for (int i = 0; i < WORDS; ++i) x[i] = words[i];
  x[WORDS] = from[offset + 2 * WORDS - 1];  // the other half of its word may lie beyond the end
  #pragma unroll
  for (int i = 0; i < WORDS; ++i) to[i] = __funnelshift_r(x[i], x[i + 1], 16 * odd);
}

extern "C" __global__ void __launch_bounds__(27) tw_unaligned_loads(
    const unsigned short* A,
    unsigned short* __restrict__ O) {
  const int t = threadIdx.x;
  griddepcontrol_launch_dependents();
  __align__(8) unsigned held[2];
  griddepcontrol_wait();
  load_unaligned<2>(held + 0, A, (int)((unsigned)t / (unsigned)3) * 13 + (int)((unsigned)t % (unsigned)3) * 4 + 1);
  *recast<uint2>(&O[t * 4]) = *recast<uint2>(&held[0]);
}
