"""The CUDA C++ of the check kernels. Every parameter has eight bytes, grids stride over any amount of data, and
memory may begin at any address (aligned data is accessed by whole words, the rest by bytes)."""

_PRELUDE = r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define PER_THREAD 8
/* Visits every i below n. A thread has eight independent iterations at a time, so that its loads do not wait. */
#define FOR_EACH(i, n)                                                                                     \
    for (u64 base = (u64)blockIdx.x * (THREADS * PER_THREAD); base < (n);                                  \
         base += (u64)gridDim.x * (THREADS * PER_THREAD))                                                  \
        _Pragma("unroll") for (int n_ = 0; n_ < PER_THREAD; ++n_)                                          \
            if (u64 i = base + n_ * THREADS + threadIdx.x; i < (n))

__device__ __noinline__ u64 load_bytes(const u8* at, u32 count)
{
    u64 value = 0;
    for (u32 n = 0; n < count; ++n) value |= (u64)at[n] << (8 * n);
    return value;
}

template <class T> __device__ __forceinline__ T load(const u8* at)
{
    return (u64)at % sizeof(T) == 0 ? *(const T*)at : (T)load_bytes(at, sizeof(T));
}

"""

_COMMON = r"""
__device__ __forceinline__ u64 expected(u64 word, u64 at) { return (word >> (8 * (at & 7))) & 255; }

extern "C" __global__ void tilewright_fill(u8* memory, u64 nbytes, u64 word)
{
    u64 words = (u64)memory % 8 == 0 ? nbytes / 8 : 0;
    FOR_EACH (i, words) ((u64*)memory)[i] = word;
    FOR_EACH (i, nbytes - 8 * words) memory[8 * words + i] = (u8)expected(word, i);
}

extern "C" __global__ void tilewright_sweep(const u8* memory, u64 nbytes, u64* result)
{
    u64 mixed = 0;
    u64 first = (16 - (u64)memory % 16) % 16;
    u64 words = nbytes < first ? 0 : (nbytes - first) / 16;
    FOR_EACH (i, words)
    {
        ulonglong2 pair = ((const ulonglong2*)(memory + first))[i];
        mixed ^= pair.x ^ pair.y;
    }
    if (mixed == 0x9e3779b97f4a7c15ull) result[3] = mixed; /* almost never true: it keeps the loads alive */
}

extern "C" __global__ void tilewright_changed(const u8* memory, u64 nbytes, u64 word, u64* result)
{
    u64 words = (u64)memory % 8 == 0 ? nbytes / 8 : 0;
    u64 first = ~0ull, last = 0;
    FOR_EACH (i, words)
    {
        u64 wrong = ((const u64*)memory)[i] ^ word;
        if (wrong) {
            u64 low = 8 * i + (__ffsll((long long)wrong) - 1) / 8, high = 8 * i + (63 - __clzll((long long)wrong)) / 8;
            first = low < first ? low : first;
            last = high > last ? high : last;
        }
    }
    FOR_EACH (i, nbytes - 8 * words)
    {
        u64 at = 8 * words + i;
        if (memory[at] != expected(word, i)) {
            first = at < first ? at : first;
            last = at > last ? at : last;
        }
    }
    if (first != ~0ull) {
        atomicMin(result, first);
        atomicMax(result + 1, last);
    }
}

extern "C" __global__ void tilewright_differs(const u8* memory, const u8* other, u64 nbytes, u64* result)
{
    u64 words = ((u64)memory | (u64)other) % 8 == 0 ? nbytes / 8 : 0;
    bool differs = false;
    FOR_EACH (i, words) differs |= ((const u64*)memory)[i] != ((const u64*)other)[i];
    FOR_EACH (i, nbytes - 8 * words) differs |= memory[8 * words + i] != other[8 * words + i];
    if (differs) *result = 1;
}
"""

_MATCHING = r"""
extern "C" __global__ void tilewright_count{size}(const u8* memory, u64 count, u64 value, u64* result)
{{
    u32 found = 0;
    FOR_EACH (i, count) found += load<{word}>(memory + {size} * i) == ({word})value;
    found = __reduce_add_sync(~0u, found);
    if (threadIdx.x % 32 == 0 && found) atomicAdd(result, (u64)found);
}}

/* Writes one byte of bits for eight elements; the first element has the lowest bit. */
extern "C" __global__ void tilewright_mark{size}(const u8* memory, u64 count, u64 value, u8* bits)
{{
    FOR_EACH (i, (count + 7) / 8)
    {{
        u32 byte = 0;
        for (u64 n = 0; n < 8 && 8 * i + n < count; ++n)
            byte |= (u32)(load<{word}>(memory + {size} * (8 * i + n)) == ({word})value) << n;
        bits[i] = (u8)byte;
    }}
}}
"""

_COMPARE = r"""
__device__ __forceinline__ double wide(double x) { return x; }
__device__ __forceinline__ double wide(float x) { return x; }
__device__ __forceinline__ double wide(long long x) { return (double)x; }
__device__ __forceinline__ double wide(int x) { return x; }
__device__ __forceinline__ double wide(signed char x) { return x; }
__device__ __forceinline__ double wide(u8 x) { return x; }
struct half { u16 bits; };
struct bfloat { u16 bits; };
__device__ __forceinline__ double wide(half x)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
}
__device__ __forceinline__ double wide(bfloat x) { return __uint_as_float((u32)x.bits << 16); }

template <class T> __device__ __forceinline__ bool same(T got, T want) { return got == want; }
__device__ __forceinline__ bool same(half got, double want) { return wide(got) == want; }
__device__ __forceinline__ bool same(bfloat got, double want) { return wide(got) == want; }
__device__ __forceinline__ bool same(float got, double want) { return (double)got == want; }

/* Every step is rounded, as the host does it. The result is never a NaN. */
template <class Got, class Want>
__device__ __forceinline__ double error(Got got, Want want, double absolute, double relative)
{
    double x = wide(got), y = wide(want);
    double value = __ddiv_rn(fabs(__dsub_rn(x, y)), __dadd_rn(absolute, __dmul_rn(relative, fabs(y))));
    if (value <= 1.7976931348623157e308) return value;
    bool equal = same(got, want) || (x != x && y != y);
    return equal ? 0.0 : __longlong_as_double(0x7ff0000000000000ll);
}

template <class Got, class Want>
__device__ __forceinline__ void compare(
    const Got* got, const Want* want, u64 count, double absolute, double relative, u64* result)
{
    double largest = 0.0;
    u64 first = ~0ull;
    FOR_EACH (i, count)
    {
        double value = error(got[i], want[i], absolute, relative);
        largest = value > largest ? value : largest;
        if (value > 1.0 && i < first) first = i;
    }
    for (int step = 16; step > 0; step /= 2) {
        double other = __shfl_xor_sync(~0u, largest, step);
        u64 index = __shfl_xor_sync(~0u, first, step);
        largest = other > largest ? other : largest;
        first = index < first ? index : first;
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(result, (u64)__double_as_longlong(largest)); /* no double here is negative: their bits are in order */
        if (first != ~0ull) atomicMin(result + 1, first);
    }
}
"""

_COMPARE_ENTRY = r"""
extern "C" __global__ void tilewright_compare_{name}(
    const {got}* got, const {want}* want, u64 count, double absolute, double relative, u64* result)
{{
    compare(got, want, count, absolute, relative, result);
}}
"""

_WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_TYPES = {
    "float64": ("double", "double"),
    "float32": ("float", "double"),
    "float16": ("half", "double"),
    "bfloat16": ("bfloat", "double"),
    "int64": ("long long", "long long"),
    "int32": ("int", "int"),
    "int8": ("signed char", "signed char"),
    "uint8": ("u8", "u8"),
    "bool": ("u8", "u8"),
}
"""This maps a dtype to the C types of an element and of what it is compared with."""

CHECKS = {
    "bytes": _PRELUDE + _COMMON,
    **{f"elements{n}": _PRELUDE + _MATCHING.format(size=n, word=word) for n, word in _WORDS.items()},
    **{
        f"compare_{name}": _PRELUDE + _COMPARE + _COMPARE_ENTRY.format(name=name, got=got, want=want)
        for name, (got, want) in _TYPES.items()
    },
}
"""This maps a name to a translation unit. They are separate because a process needs few of them and each takes time
to compile."""
