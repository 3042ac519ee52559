// transpose for cuda sm_90a: tw_transpose<<<2, 256, 8444>>>

// replaces the bits of element i of packed words
static __device__ __forceinline__ void insert_u16(unsigned* words, int i, unsigned short bits) {
  const unsigned other = words[i / 2] & (i % 2 ? 0x0000ffffu : 0xffff0000u);
  words[i / 2] = other | (unsigned)bits << 16 * (i % 2);
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

// the same address as a pointer to a vector type, which moves several elements at once
template <typename T> static __device__ __forceinline__ T* recast(void* pointer) { return reinterpret_cast<T*>(pointer); }
template <typename T> static __device__ __forceinline__ const T* recast(const void* pointer) { return reinterpret_cast<const T*>(pointer); }

extern "C" __global__ void __launch_bounds__(256) tw_transpose(
    const unsigned short* A,
    unsigned short* __restrict__ O) {
  const int bx = blockIdx.x;
  const int t = threadIdx.x;
  extern __shared__ __align__(16) unsigned char shared[];
  unsigned short* const tile = reinterpret_cast<unsigned short*>(shared + 0);
  griddepcontrol_launch_dependents();
  __align__(16) unsigned stage[4];
  griddepcontrol_wait();
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    *recast<uint4>(&stage[0]) = *recast<uint4>(&A[i * 4096 + (t >> 3) * 128 + bx * 64 + (t & 7) * 8]);
    *recast<unsigned>(&tile[i * 2112 + (t >> 3) * 66 + (t & 7) * 8]) = *recast<unsigned>(&stage[0]);
    *recast<unsigned>(&tile[i * 2112 + (t >> 3) * 66 + (t & 7) * 8 + 2]) = *recast<unsigned>(&stage[1]);
    *recast<unsigned>(&tile[i * 2112 + (t >> 3) * 66 + (t & 7) * 8 + 4]) = *recast<unsigned>(&stage[2]);
    *recast<unsigned>(&tile[i * 2112 + (t >> 3) * 66 + (t & 7) * 8 + 6]) = *recast<unsigned>(&stage[3]);
  }
  __syncthreads();
  #pragma unroll
  for (int j = 0; j < 2; ++j) {
    __align__(16) unsigned O_words[4];
    const int t_1 = t >> 3;
    #pragma unroll
    for (int l = 0; l < 8; ++l) {
      insert_u16(O_words, l, tile[(t & 7) * 528 + j * 32 + t_1 + l * 66]);
    }
    *recast<uint4>(&O[bx * 4096 + j * 2048 + t * 8]) = *recast<uint4>(&O_words[0]);
  }
}
