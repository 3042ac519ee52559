// unaligned_copies for cuda sm_90a: tw_unaligned_copies<<<1, 27, 0>>>

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

// loads 8 contiguous elements at any offset of a buffer that is aligned to 16 bytes: loads the one or two
// chunks of 16 bytes that hold them, which lie in the buffer, and shifts
template <typename I> static __device__ __forceinline__ uint4 load_unaligned_x8(const unsigned short* from, I offset) {
  const uint4* chunks = reinterpret_cast<const uint4*>(from);
  const uint4 a = chunks[offset >> 3], b = chunks[(offset + 7) >> 3];
  const bool four = offset & 4, two = offset & 2;
  const int odd = 16 * (offset & 1);
  unsigned x[6] = {four ? a.z : a.x, four ? a.w : a.y, four ? b.x : a.z,
                   four ? b.y : a.w, four ? b.z : b.x, four ? b.w : b.y};
  #pragma unroll
  for (int i = 0; i < 5; ++i) x[i] = two ? x[i + 1] : x[i];
  return make_uint4(__funnelshift_r(x[0], x[1], odd), __funnelshift_r(x[1], x[2], odd),
                    __funnelshift_r(x[2], x[3], odd), __funnelshift_r(x[3], x[4], odd));
}

// the same where chunks may reach beyond the last whole one, which ends at END: single elements there
template <typename I> static __device__ __forceinline__ uint4 load_unaligned_x8_before(const unsigned short* from, I offset, long long end) {
  if ((long long)offset + 8 <= end) return load_unaligned_x8(from, offset);
  unsigned last[4];
  #pragma unroll
  for (int i = 0; i < 4; ++i) last[i] = from[offset + 2 * i] | (unsigned)from[offset + 2 * i + 1] << 16;
  return make_uint4(last[0], last[1], last[2], last[3]);
}

extern "C" __global__ void __launch_bounds__(27) tw_unaligned_copies(
    const unsigned short* A,
    unsigned short* __restrict__ O) {
  const int t = threadIdx.x;
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int t_1 = (int)((unsigned)t / (unsigned)3);
  const int t_2 = (int)((unsigned)t % (unsigned)3);
  *recast<uint4>(&O[t * 8]) = load_unaligned_x8_before(A, t_1 * 29 + t_2 * 8 + 2, 256);
}
