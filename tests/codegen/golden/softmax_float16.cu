// softmax for cuda sm_90a: tw_softmax<<<3, 32, 8>>>

// converts N values that are packed in N / 2 words
template <int N> static __device__ __forceinline__ void unpack_half(const unsigned* words, float* x) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x[2 * i]), "=f"(x[2 * i + 1]) : "r"(words[i]));
}

// converts N values and packs them into N / 2 words
template <int N> static __device__ __forceinline__ void pack_half(const float* x, unsigned* words) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(words[i]) : "f"(x[2 * i]), "f"(x[2 * i + 1]));
}

// the result is NaN if either operand is
static __device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
static __device__ __forceinline__ double max_nan(double a, double b) { return a > b || a != a ? a : b; }

static __device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// has a relative error of about 2^-21 in the range of 16-bit results
static __device__ __forceinline__ float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }

// is off by at most 2 units in the last place
static __device__ __forceinline__ float fast_divide(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
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

// loads data that is read once: L1 does not keep it
static __device__ __forceinline__ uint4 ld_global_no_allocate(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(__cvta_generic_to_global(from)));
  return x;
}
static __device__ __forceinline__ uint2 ld_global_no_allocate(const uint2* from) {
  uint2 x;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
      : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(from)));
  return x;
}
static __device__ __forceinline__ unsigned ld_global_no_allocate(const unsigned* from) {
  unsigned x;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}

extern "C" __global__ void __launch_bounds__(32) tw_softmax(
    const unsigned short* A,
    unsigned short* __restrict__ O) {
  const int row = blockIdx.x;
  const int t = threadIdx.x;
  extern __shared__ __align__(16) unsigned char shared[];
  float* const partials = reinterpret_cast<float*>(shared + 0);
  griddepcontrol_launch_dependents();
  __align__(16) float x[32];
  __align__(8) float value[2];
  griddepcontrol_wait();
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    __align__(16) unsigned A_v_words[4];
    *recast<uint4>(&A_v_words[0]) = ld_global_no_allocate(recast<uint4>(&A[row * 1024 + i * 256 + t * 8]));
    float A_v[8];
    unpack_half<8>(A_v_words, A_v);
    #pragma unroll
    for (int l = 0; l < 8; ++l) {
      x[i * 8 + l] = A_v[l];
    }
  }
  value[0] = __int_as_float((int)0xff800000);
  #pragma unroll
  for (int j0 = 0; j0 < 4; ++j0) {
    float partial[8];
    #pragma unroll
    for (int l_1 = 0; l_1 < 8; ++l_1) {
      partial[l_1] = x[j0 * 8 + l_1];
    }
    #pragma unroll
    for (int stride = 4; stride > 0; stride /= 2) {
      #pragma unroll
      for (int l_2 = 0; l_2 < stride; ++l_2) {
        partial[l_2] = max_nan(partial[l_2], partial[l_2 + stride]);
      }
    }
    value[0] = max_nan(value[0], partial[0]);
  }
  const float t_1 = __shfl_xor_sync(0xffffffffu, value[0], 16);
  value[0] = max_nan(value[0], t_1);
  const float t_2 = __shfl_xor_sync(0xffffffffu, value[0], 8);
  value[0] = max_nan(value[0], t_2);
  const float t_3 = __shfl_xor_sync(0xffffffffu, value[0], 4);
  value[0] = max_nan(value[0], t_3);
  const float t_4 = __shfl_xor_sync(0xffffffffu, value[0], 2);
  value[0] = max_nan(value[0], t_4);
  const float t_5 = __shfl_xor_sync(0xffffffffu, value[0], 1);
  value[0] = max_nan(value[0], t_5);
  if (t == 0) {
    partials[0] = value[0];
  }
  __syncthreads();
  value[0] = __int_as_float((int)0xff800000);
  value[0] = max_nan(value[0], partials[0]);
  value[1] = 0.0f;
  #pragma unroll
  for (int j1 = 0; j1 < 4; ++j1) {
    #pragma unroll
    for (int l_3 = 0; l_3 < 8; ++l_3) {
      x[j1 * 8 + l_3] = fast_exp(x[j1 * 8 + l_3] - value[0]);
    }
    float partial_1[8];
    #pragma unroll
    for (int l_4 = 0; l_4 < 8; ++l_4) {
      partial_1[l_4] = x[j1 * 8 + l_4];
    }
    #pragma unroll
    for (int stride_1 = 4; stride_1 > 0; stride_1 /= 2) {
      #pragma unroll
      for (int l_5 = 0; l_5 < stride_1; ++l_5) {
        partial_1[l_5] = partial_1[l_5] + partial_1[l_5 + stride_1];
      }
    }
    value[1] = value[1] + partial_1[0];
  }
  const float t_6 = __shfl_xor_sync(0xffffffffu, value[1], 16);
  value[1] = value[1] + t_6;
  const float t_7 = __shfl_xor_sync(0xffffffffu, value[1], 8);
  value[1] = value[1] + t_7;
  const float t_8 = __shfl_xor_sync(0xffffffffu, value[1], 4);
  value[1] = value[1] + t_8;
  const float t_9 = __shfl_xor_sync(0xffffffffu, value[1], 2);
  value[1] = value[1] + t_9;
  const float t_10 = __shfl_xor_sync(0xffffffffu, value[1], 1);
  value[1] = value[1] + t_10;
  if (t == 0) {
    partials[1] = value[1];
  }
  __syncthreads();
  value[1] = 0.0f;
  value[1] = value[1] + partials[1];
  #pragma unroll
  for (int o = 0; o < 4; ++o) {
    __align__(16) unsigned O_words[4];
    float r[8];
    #pragma unroll
    for (int l_7 = 0; l_7 < 8; ++l_7) {
      r[l_7] = fast_divide(x[o * 8 + l_7], value[1]);
    }
    pack_half<8>(r, O_words);
    __stcs(recast<uint4>(&O[row * 1024 + o * 256 + t * 8]), *recast<uint4>(&O_words[0]));
  }
}
