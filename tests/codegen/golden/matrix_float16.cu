// matrix for cuda sm_90a: tw_matrix<<<1, 32, 2032>>>

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

static __device__ __forceinline__ unsigned smem_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// d += a * b; all three are fragments in the registers of a warp
static __device__ __forceinline__ void mma_m16n8k16_f16(float* d, const unsigned* a, const unsigned* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// loads COUNT 8x8 matrices of 16-bit elements; each lane passes the address of one row
template <int COUNT, bool TRANSPOSED> static __device__ __forceinline__ void ldmatrix(unsigned* to, const void* row) {
  const unsigned address = smem_address(row);
  if (COUNT == 4 && TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
  else if (COUNT == 4)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
  else if (COUNT == 2 && TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
  else if (COUNT == 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
  else if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(to[0]) : "r"(address) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(to[0]) : "r"(address) : "memory");
}

extern "C" __global__ void __launch_bounds__(32) tw_matrix(
    const unsigned short* A,
    const unsigned short* B,
    float* __restrict__ C) {
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(512) unsigned char shared[];
  unsigned short* const a_tile = reinterpret_cast<unsigned short*>(shared + 0);
  unsigned short* const b_tile = reinterpret_cast<unsigned short*>(shared + 1024);
  griddepcontrol_launch_dependents();
  __align__(16) unsigned left[4];
  __align__(16) unsigned right[4];
  __align__(16) float total[4];
  griddepcontrol_wait();
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int offset = lane * 8;
    *recast<uint4>(&a_tile[i * 256 + (offset ^ ((offset >> 3) & 24))]) = *recast<uint4>(&A[i * 256 + lane * 8]);
  }
  *recast<uint4>(&b_tile[lane * 16]) = *recast<uint4>(&B[lane * 8]);
  __syncthreads();
  #pragma unroll
  for (int l = 0; l < 4; ++l) {
    total[l] = 0.0f;
  }
  ldmatrix<4, true>(right, &b_tile[lane * 16]);
  #pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int offset_1 = (lane & 15) * 32 + k * 16 + (lane >> 4) * 8;
    ldmatrix<4, false>(left, &a_tile[(offset_1 ^ ((offset_1 >> 3) & 24))]);
    mma_m16n8k16_f16(total, left, right + k * 4 / 2);
  }
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    *recast<uint2>(&C[half * 64 + lane * 2]) = *recast<uint2>(&total[half * 2]);
  }
}
