// shifted for cuda sm_90a: tw_shifted<<<1, 27, 0>>>

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

// 8 neighbours that may begin anywhere, from a buffer that begins at a multiple of 16 bytes: the one or two
// pieces of 16 bytes that they lie in, shifted; one after another where the buffer ends ahead of a whole piece
template <typename I> static __device__ __forceinline__ uint4 load_run_wide(const unsigned short* from, I at, long long whole) {
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
}

extern "C" __global__ void __launch_bounds__(27) tw_shifted(
    const unsigned short* A,
    unsigned short* __restrict__ O) {
  const int t = threadIdx.x;
  let_next_launch();
  await_earlier_launch();
  const int t_1 = (int)((unsigned)t / (unsigned)3);
  const int t_2 = (int)((unsigned)t % (unsigned)3);
  *as<uint4>(&O[t * 8]) = load_run_wide(A, t_1 * 29 + t_2 * 8 + 2, 256);
}
