// runs for cuda sm_90a: tw_runs<<<1, 27, 0>>>

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

// 2 * WORDS neighbours that may begin in the middle of a word: the words that they lie in, shifted
template <int WORDS> static __device__ __forceinline__ void load_run(unsigned* to, const unsigned short* from, int at) {
  const unsigned* words = reinterpret_cast<const unsigned*>(from) + (at >> 1);
  const int odd = at & 1;
  unsigned x[WORDS + 1];
  #pragma unroll
  for (int i = 0; i < WORDS; ++i) x[i] = words[i];
  x[WORDS] = from[at + 2 * WORDS - 1];  // the other half of its word may be beyond the end
  #pragma unroll
  for (int i = 0; i < WORDS; ++i) to[i] = __funnelshift_r(x[i], x[i + 1], 16 * odd);
}

extern "C" __global__ void __launch_bounds__(27) tw_runs(
    const unsigned short* A,
    unsigned short* __restrict__ O) {
  const int t = threadIdx.x;
  let_next_launch();
  __align__(8) unsigned held[2];
  await_earlier_launch();
  load_run<2>(held + 0, A, (int)((unsigned)t / (unsigned)3) * 13 + (int)((unsigned)t % (unsigned)3) * 4 + 1);
  *as<uint2>(&O[t * 4]) = *as<uint2>(&held[0]);
}
