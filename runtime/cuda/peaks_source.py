"""The CUDA C++ of the kernels that measure a device's peaks."""

UNROLL = 4
"""A thread has so many accesses of 16 bytes in flight."""
ACCUMULATORS = 16
ROUNDS = 2048
"""A thread has ``ACCUMULATORS`` independent chains of multiply-adds, enough to hide their latency; each has
``ROUNDS`` steps."""
FRAGMENTS = 8
"""The power anchor multiplies so many pairs of fragments in turn: other bits in every product cost the most power."""
TENSOR_ACCUMULATORS = 8
TENSOR_ROUNDS = 1024
POWER_ROUNDS = 1200
"""A warp makes ``FRAGMENTS ** 2`` products a round, which takes a Hopper card about 1 ms."""

_TRAFFIC = f"""
#define UNROLL {UNROLL}
#define AT(n) ((unsigned long long)blockIdx.x * (blockDim.x * UNROLL) + (n) * blockDim.x + threadIdx.x)
"""

_KERNELS = r"""
__device__ __forceinline__ uint4 get(const uint4* at)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

extern "C" __global__ void copy(const uint4* x, uint4* y)
{
    uint4 v[UNROLL];
    #pragma unroll
    for (int n = 0; n < UNROLL; ++n) v[n] = get(x + AT(n));
    #pragma unroll
    for (int n = 0; n < UNROLL; ++n) y[AT(n)] = v[n];
}

extern "C" __global__ void copy_streaming(const uint4* x, uint4* y)
{
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    __stcs(y + at, __ldcs(x + at));
}

extern "C" __global__ void read(const uint4* x, uint4* y)
{
    uint4 v[UNROLL];
    unsigned mixed = 0;
    #pragma unroll
    for (int n = 0; n < UNROLL; ++n) v[n] = get(x + AT(n));
    #pragma unroll
    for (int n = 0; n < UNROLL; ++n) mixed ^= v[n].x ^ v[n].y ^ v[n].z ^ v[n].w;
    if (mixed == 0x9e3779b9u) y[AT(0)] = v[0]; /* almost never true: it keeps the loads alive */
}

extern "C" __global__ void write(const uint4* x, uint4* y)
{
    #pragma unroll
    for (int n = 0; n < UNROLL; ++n)
        y[AT(n)] = make_uint4(blockIdx.x, threadIdx.x, n, 0x3f000000u);
}

extern "C" __global__ void empty() {}
"""

_MULTIPLY_ADD = r"""
extern "C" __global__ void __launch_bounds__(256) multiply_add_{name}({type}* data)
{{
    {type} x = data[0], y = data[1], sum[{accumulators}];
    #pragma unroll
    for (int n = 0; n < {accumulators}; ++n) sum[n] = data[n + threadIdx.x % 32];
    #pragma unroll 4
    for (int round = 0; round < {rounds}; ++round) {{
        #pragma unroll
        for (int n = 0; n < {accumulators}; ++n) {step};
    }}
    {type} all = sum[0];
    #pragma unroll
    for (int n = 1; n < {accumulators}; ++n) all += sum[n];
    if (all == ({type})12345) data[threadIdx.x % 32] = all; /* almost never true: it keeps the sums alive */
}}
"""
_STEPS = {
    "float32": ("float", "sum[n] = __fmaf_rn(sum[n], x, y)"),
    "float64": ("double", "sum[n] = __fma_rn(sum[n], x, y)"),
    "float16": ("unsigned", 'asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(sum[n]) : "r"(x), "r"(y))'),
}

_MATRIX = r"""
extern "C" __global__ void __launch_bounds__(256) matrix_{name}(unsigned* data)
{{
    unsigned a[4], b[2];
    float sum[{accumulators}][4];
    #pragma unroll
    for (int n = 0; n < 4; ++n) a[n] = data[n + threadIdx.x % 32] & 0x83ff83ffu | 0x38003800u;
    #pragma unroll
    for (int n = 0; n < 2; ++n) b[n] = data[n + 64 + threadIdx.x % 32] & 0x83ff83ffu | 0x38003800u;
    #pragma unroll
    for (int n = 0; n < {accumulators}; ++n)
        for (int m = 0; m < 4; ++m) sum[n][m] = 0.0f;
    #pragma unroll 2
    for (int round = 0; round < {rounds}; ++round) {{
        #pragma unroll
        for (int n = 0; n < {accumulators}; ++n)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32 "
                         "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
                         : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }}
    float all = 0.0f;
    #pragma unroll
    for (int n = 0; n < {accumulators}; ++n) all += sum[n][0] + sum[n][1] + sum[n][2] + sum[n][3];
    if (all == 12345.0f) data[threadIdx.x] = (unsigned)all; /* almost never true: it keeps the sums alive */
}}
"""

_POWER = r"""
extern "C" __global__ void __launch_bounds__(256) power_anchor(unsigned* data)
{{
    unsigned a[{fragments}][4], b[{fragments}][2];
    float sum[{fragments}][4];
    #pragma unroll
    for (int n = 0; n < {fragments}; ++n) {{
        for (int m = 0; m < 4; ++m) a[n][m] = data[(4 * n + m) * 32 + threadIdx.x % 32] & 0x83ff83ffu | 0x38003800u;
        for (int m = 0; m < 2; ++m) b[n][m] = data[(n + 64 * (m + 2)) + threadIdx.x % 32] & 0x83ff83ffu | 0x38003800u;
        for (int m = 0; m < 4; ++m) sum[n][m] = 0.0f;
    }}
    #pragma unroll 1
    for (int round = 0; round < {rounds}; ++round) {{
        #pragma unroll
        for (int m = 0; m < {fragments}; ++m)
            #pragma unroll
            for (int n = 0; n < {fragments}; ++n) {{
                const unsigned* x = a[n];
                const unsigned* y = b[(n + m) % {fragments}];
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                             "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
                             : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
                             : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
            }}
    }}
    float all = 0.0f;
    #pragma unroll
    for (int n = 0; n < {fragments}; ++n) all += sum[n][0] + sum[n][1] + sum[n][2] + sum[n][3];
    if (all == 12345.0f) data[threadIdx.x] = (unsigned)all; /* almost never true: it keeps the sums alive */
}}
"""

PEAKS = "".join(
    [
        _TRAFFIC,
        _KERNELS,
        *(
            _MULTIPLY_ADD.format(name=name, type=kind, step=step, accumulators=ACCUMULATORS, rounds=ROUNDS)
            for name, (kind, step) in _STEPS.items()
        ),
        *(
            _MATRIX.format(name=name, type=kind, accumulators=TENSOR_ACCUMULATORS, rounds=TENSOR_ROUNDS)
            for name, kind in (("float16", "f16"), ("bfloat16", "bf16"))
        ),
        _POWER.format(fragments=FRAGMENTS, rounds=POWER_ROUNDS),
    ]
)
"""All kernels, as one translation unit."""
