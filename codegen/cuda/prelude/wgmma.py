"""These functions wrap what warpgroups have (sm_90a): ``wgmma.mma_async`` with its shared-memory descriptors and
fences, named barriers, and ``setmaxnreg``."""

from ....ir.gpu.wgmma import WGMMA_ATOMS, WgmmaAtom
from .device_function import DeviceFunction
from .mma import register_type

_TYPES = {
    "float16": "f16",
    "bfloat16": "bf16",
    "tfloat32": "tf32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
}
"""It maps the name of an operand's dtype to PTX's name of it."""


def wgmma_name(atom: WgmmaAtom, n: int, a_in_registers: bool = False) -> str:
    """Return the name of the function for operands of some dtypes and a result of ``n`` columns."""
    a, b = _TYPES[atom.a.name], _TYPES[atom.b.name]
    types = a if a == b else f"{a}_{b}"
    return f"wgmma_m64n{n}k{atom.k}_{types}{'_register_a' if a_in_registers else ''}"


def _wgmma_k_major(atom: WgmmaAtom, n: int) -> str:
    """Return the function for operands that are always K-major, which have no flags to say so."""
    count, a, b = n // 2, _TYPES[atom.a.name], _TYPES[atom.b.name]
    d, letter, flags = ("f32", "f", ", 1, 1") if atom.accumulator.is_float else ("s32", "r", "")
    accumulators = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    registers = ", ".join(f"%{i}" for i in range(count))
    return f"""// starts d += a * b, or d = a * b, where a is 64 x K and b is K x {n}, in shared memory with the
// 128-byte swizzle, both contiguous along k
template <int K> $void {wgmma_name(atom, n)}(
    {"float" if letter == "f" else "int"}* d, unsigned long long descriptor_a, unsigned long long descriptor_b,
    bool accumulate = true) {{
  asm volatile("wgmma.fence.sync.aligned;" : {accumulators} :: "memory");
#pragma unroll
  for (int k = 0; k < K / {atom.k}; ++k)
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; "
                 "wgmma.mma_async.sync.aligned.m64n{n}k{atom.k}.{d}.{a}.{b} "
                 "{{{registers}}}, %{count}, %{count + 1}, p{flags}; }}"
                 : {accumulators} : "l"(descriptor_a + 2 * k), "l"(descriptor_b + 2 * k),
                   "r"(k > 0 || accumulate ? 1 : 0));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}"""


def _wgmma(atom: WgmmaAtom, n: int) -> str:
    if not atom.transposes:
        return _wgmma_k_major(atom, n)
    count, type = n // 2, _TYPES[atom.a.name]
    accumulators = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    registers = ", ".join(f"%{i}" for i in range(count))
    return f"""// starts d += a * b, or d = a * b, where a is 64 x K and b is K x {n}, in shared memory with the
// 128-byte swizzle; an operand is MN_MAJOR where it is contiguous along m or n, and not along k
template <int K, bool MN_MAJOR_A, bool MN_MAJOR_B> $void {wgmma_name(atom, n)}(
    float* d, unsigned long long descriptor_a, unsigned long long descriptor_b, bool accumulate = true) {{
  asm volatile("wgmma.fence.sync.aligned;" : {accumulators} :: "memory");
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; "
                 "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} "
                 "{{{registers}}}, %{count}, %{count + 1}, p, 1, 1, %{count + 3}, %{count + 4}; }}"
                 : {accumulators} : "l"(descriptor_a + (MN_MAJOR_A ? 128 : 2) * k),
                   "l"(descriptor_b + (MN_MAJOR_B ? 128 : 2) * k),
                   "r"(k > 0 || accumulate ? 1 : 0), "n"(MN_MAJOR_A), "n"(MN_MAJOR_B));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}"""


def _wgmma_register_a(atom: WgmmaAtom, n: int) -> str:
    count, type = n // 2, _TYPES[atom.a.name]
    accumulators = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    registers = ", ".join(f"%{i}" for i in range(count))
    fragment = ", ".join(f"%{count + i}" for i in range(4))
    register, bits = register_type(type)
    held = ", ".join(f'"r"({bits.format(f"a[4 * k + {i}]" if i else "a[4 * k]")})' for i in range(4))
    template, flag, step, major = "template <int K>", "", "2", ""
    if atom.transposes:
        template, flag = "template <int K, bool MN_MAJOR_B>", f", %{count + 6}"
        step, major = "(MN_MAJOR_B ? 128 : 2)", ', "n"(MN_MAJOR_B)'
    return f"""// starts d += a * b, or d = a * b, where a is 64 x K, in registers, and b is as above
{template} $void {wgmma_name(atom, n, a_in_registers=True)}(
    float* d, const {register}* a, unsigned long long descriptor_b, bool accumulate = true) {{
  asm volatile("wgmma.fence.sync.aligned;" : {accumulators} :: "memory");
#pragma unroll
  for (int k = 0; k < K / {atom.k}; ++k)
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 5}, 0; "
                 "wgmma.mma_async.sync.aligned.m64n{n}k{atom.k}.f32.{type}.{type} "
                 "{{{registers}}}, {{{fragment}}}, %{count + 4}, p, 1, 1{flag}; }}"
                 : {accumulators} : {held},
                   "l"(descriptor_b + {step} * k),
                   "r"(k > 0 || accumulate ? 1 : 0){major});
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}"""


WGMMA: dict[str, DeviceFunction] = {
    "wgmma_descriptor": DeviceFunction(
        """// describes a K-major operand: rows of 128 bytes along k, groups of 8 rows 1024 bytes apart
unsigned long long wgmma_descriptor(const void* tile) {
  return (smem_address(tile) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}""",
        ("smem_address",),
    ),
    "wgmma_descriptor_mn_major": DeviceFunction(
        """// describes an MN-major operand: rows of 64 elements along m or n, the next 64 begin LEADING_BYTES further
template <int LEADING_BYTES> $unsigned long long wgmma_descriptor_mn_major(const void* tile) {
  const unsigned long long leading = LEADING_BYTES >> 4;
  return (smem_address(tile) & 0x3ffff) >> 4 | leading << 16 | 64ull << 32 | 1ull << 62;
}""",
        ("smem_address",),
    ),
    **{
        wgmma_name(atom, n): DeviceFunction(_wgmma(atom, n))
        for atom in WGMMA_ATOMS.values()
        for n in range(8, 257, 8)
        if atom.takes_columns(n)
    },
    **{
        wgmma_name(atom, n, a_in_registers=True): DeviceFunction(_wgmma_register_a(atom, n))
        for atom in WGMMA_ATOMS.values()
        for n in range(8, 257, 8)
        if atom.fragment is not None
    },
    "wgmma_wait_group": DeviceFunction(
        """// waits until at most PENDING groups of this warpgroup, the youngest, are still in flight
template <int PENDING> $void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}"""
    ),
    "recomputed": DeviceFunction(
        """// returns the address; the compiler does not see that it is the same as before, and computes it again
const void* recomputed(const void* address) {
  asm volatile("" : "+l"(address));
  return address;
}"""
    ),
    "computed_here": DeviceFunction(
        """// this use of the value stays ahead of later waits, and so does all that it is computed from
void computed_here(float value) {
  asm volatile("{ .reg .pred p; setp.eq.f32 p, %0, 0fC797E880; @p membar.cta; }" :: "f"(value) : "memory");
}"""
    ),
    "warpgroup_fence_operand": DeviceFunction(
        """// keeps the compiler from reading these accumulators earlier than here
template <int COUNT> $void warpgroup_fence_operand(float* d) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}"""
    ),
    "warpgroup_fence_integer_operand": DeviceFunction(
        """// the same for accumulators that are integers
template <int COUNT> $void warpgroup_fence_integer_operand(int* d) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(d[i]) :: "memory");
}"""
    ),
    "warpgroup_sync": DeviceFunction(
        """// a named barrier of the 128 threads of this warpgroup
void warpgroup_sync() { asm volatile("bar.sync %0, 128;" :: "r"(1 + threadIdx.x / 128) : "memory"); }"""
    ),
    "ordered_sequence_start": DeviceFunction(
        """// the first WARPGROUPS warpgroups take turns from now on, by a named barrier of each; the first one begins
template <int WARPGROUPS> $void ordered_sequence_start() {
  if (threadIdx.x / 128 == WARPGROUPS - 1) asm volatile("bar.arrive 9, 256;" ::: "memory");
}"""
    ),
    "ordered_sequence_wait": DeviceFunction(
        """template <int WARPGROUPS> $void ordered_sequence_wait() {
  asm volatile("bar.sync %0, 256;" :: "r"(9 + threadIdx.x / 128) : "memory");
}"""
    ),
    "ordered_sequence_arrive": DeviceFunction(
        """// the turn of the next warpgroup begins
template <int WARPGROUPS> $void ordered_sequence_arrive() {
  asm volatile("bar.arrive %0, 256;" :: "r"(9 + (threadIdx.x / 128 + 1) % WARPGROUPS) : "memory");
}"""
    ),
    "setmaxnreg_dec": DeviceFunction(
        """template <int COUNT> $void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}"""
    ),
    "setmaxnreg_inc": DeviceFunction(
        """template <int COUNT> $void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}"""
    ),
}
"""It maps names to functions."""
