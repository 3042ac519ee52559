"""Functions of the prelude for warpgroups: their products (``wgmma``), barriers and registers; matrices to shared
memory."""

from .device_function import Function


def _products() -> dict[str, Function]:
    """Products of a warpgroup for every type and number of columns."""
    kinds = {"half": "f16", "bfloat": "bf16"}
    return {
        f"group_mma_{kind}_{columns}": Function(_product(kind, type, columns))
        for kind, type in kinds.items()
        for columns in range(8, 257, 8)
    }


def _product(kind: str, type: str, columns: int) -> str:
    count = columns // 2
    held = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    places = ", ".join(f"%{i}" for i in range(count))
    return f"""// starts d += a * b, or d = a * b, by 4 warps: a has 64 rows, b {columns}, both DEPTH columns in shared
// memory; A_RUNS, B_RUNS: they lie along their rows
template <int DEPTH, bool A_RUNS, bool B_RUNS> $void group_mma_{kind}_{columns}(
    float* d, unsigned long long a, unsigned long long b, bool accumulates = true) {{
  asm volatile("wgmma.fence.sync.aligned;" : {held} :: "memory");
#pragma unroll
  for (int k = 0; k < DEPTH / 16; ++k)
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; "
                 "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{type}.{type} "
                 "{{{places}}}, %{count}, %{count + 1}, p, 1, 1, %{count + 3}, %{count + 4}; }}"
                 : {held} : "l"(a + (A_RUNS ? 128 : 2) * k), "l"(b + (B_RUNS ? 128 : 2) * k),
                   "r"(k > 0 || accumulates ? 1 : 0), "n"(A_RUNS), "n"(B_RUNS));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}"""


GROUPS: dict[str, Function] = {
    "group_operand": Function(
        """// where rows of 128 bytes lie, 8 of them swizzled together, as the matrix units are told
unsigned long long group_operand(const void* rows) {
  return (shared_address(rows) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}""",
        ("shared_address",),
    ),
    "group_operand_runs": Function(
        """// the same of an operand that lies along its rows, 64 in 128 bytes, the next 64 APART bytes further
template <int APART> $unsigned long long group_operand_runs(const void* runs) {
  return (shared_address(runs) & 0x3ffff) >> 4 | (unsigned long long)(APART >> 4) << 16 | 64ull << 32 | 1ull << 62;
}""",
        ("shared_address",),
    ),
    **_products(),
    "warpgroup_mma_wait": Function(
        """// until at most PENDING products of this warpgroup are under way
template <int PENDING> $void warpgroup_mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}"""
    ),
    "awaited": Function(
        """// nothing that follows reads these registers earlier
template <int COUNT> $void awaited(float* d) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}"""
    ),
    "warp_number": Function(
        """// of this thread's warp, told so that the compiler knows all its lanes to be told the same
int warp_number() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }"""
    ),
    "group_barrier": Function(
        """// all 128 threads of a warpgroup meet
void group_barrier() { asm volatile("bar.sync %0, 128;" :: "r"(1 + threadIdx.x / 128) : "memory"); }"""
    ),
    "fewer_registers": Function(
        """template <int COUNT> $void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}"""
    ),
    "more_registers": Function(
        """template <int COUNT> $void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}"""
    ),
    "store_matrix": Function(
        """// COUNT matrices of 8 rows of 8 16-bit elements; each lane says where one row begins
template <int COUNT, bool TRANSPOSED> $void store_matrix(void* row, const unsigned* from) {
  const unsigned address = shared_address(row);
  if (COUNT == 4 && TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
  else if (COUNT == 4)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
  else if (COUNT == 2 && TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]) : "memory");
  else if (COUNT == 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 :: "r"(address), "r"(from[0]), "r"(from[1]) : "memory");
  else if (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
                 :: "r"(address), "r"(from[0]) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};"
                 :: "r"(address), "r"(from[0]) : "memory");
}""",
        ("shared_address",),
    ),
}
"""Name -> function."""
