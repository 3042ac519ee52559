// transpose for cuda sm_90a: tw_transpose<<<2, 256, 8444>>>

// several elements as what moves them at once
template <typename T> static __device__ __forceinline__ T* as(void* place) { return reinterpret_cast<T*>(place); }
template <typename T> static __device__ __forceinline__ const T* as(const void* place) { return reinterpret_cast<const T*>(place); }

static __device__ __forceinline__ void set_bits(unsigned* words, int i, unsigned short bits) {
  const unsigned other = words[i / 2] & (i % 2 ? 0x0000ffffu : 0xffff0000u);
  words[i / 2] = other | (unsigned)bits << 16 * (i % 2);
}

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

extern "C" __global__ void __launch_bounds__(256) tw_transpose(
    const unsigned short* A,
    unsigned short* __restrict__ O) {
  const int bx = blockIdx.x;
  const int t = threadIdx.x;
  extern __shared__ __align__(16) unsigned char shared[];
  unsigned short* const tile = reinterpret_cast<unsigned short*>(shared + 0);
  let_next_launch();
  __align__(16) unsigned stage[4];
  await_earlier_launch();
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    *as<uint4>(&stage[0]) = *as<uint4>(&A[i * 4096 + (t >> 3) * 128 + bx * 64 + (t & 7) * 8]);
    *as<unsigned>(&tile[i * 2112 + (t >> 3) * 66 + (t & 7) * 8]) = *as<unsigned>(&stage[0]);
    *as<unsigned>(&tile[i * 2112 + (t >> 3) * 66 + (t & 7) * 8 + 2]) = *as<unsigned>(&stage[1]);
    *as<unsigned>(&tile[i * 2112 + (t >> 3) * 66 + (t & 7) * 8 + 4]) = *as<unsigned>(&stage[2]);
    *as<unsigned>(&tile[i * 2112 + (t >> 3) * 66 + (t & 7) * 8 + 6]) = *as<unsigned>(&stage[3]);
  }
  __syncthreads();
  #pragma unroll
  for (int j = 0; j < 2; ++j) {
    __align__(16) unsigned O_words[4];
    const int t_1 = t >> 3;
    #pragma unroll
    for (int l = 0; l < 8; ++l) {
      set_bits(O_words, l, tile[(t & 7) * 528 + j * 32 + t_1 + l * 66]);
    }
    *as<uint4>(&O[bx * 4096 + j * 2048 + t * 8]) = *as<uint4>(&O_words[0]);
  }
}
