"""The device functions of warp groups and tensor copies, as text and what it calls; see ``prelude``."""

from ...ir.gpu import GROUP_DEPTH

_TYPES = {"f16": "f16", "bf16": "bf16"}
_PER_LINE = 16


def _tensor_copy(rank: int) -> str:
    """The copy of a box of ``rank`` dimensions; coordinates from the innermost on, as the hardware counts them."""
    names = [f"i{n}" for n in range(rank)]
    coordinates = ", ".join(f"%{3 + n}" for n in range(rank))
    given = "".join(f', "r"({name})' for name in names)
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    return f"""// arrives at the barrier, which expects the bytes, and starts the copy; ONCE: caches need not keep it
template <bool ONCE> $void tensor_copy_{rank}(void* to, const TensorMap* map, unsigned bytes, long long* barrier,
                                              {", ".join(f"int {name}" for name in names)}) {{
  const unsigned target = shared_address(to), arrivals = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(arrivals), "r"(bytes) : "memory");
  if (ONCE) {{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    asm volatile("{copy}.L2::cache_hint"
                 " [%0], [%1, {{{coordinates}}}], [%2], %{3 + rank};"
                 :: "r"(target), "l"(map), "r"(arrivals){given}, "l"(policy) : "memory");
  }} else {{
    asm volatile("{copy}"
                 " [%0], [%1, {{{coordinates}}}], [%2];"
                 :: "r"(target), "l"(map), "r"(arrivals){given} : "memory");
  }}
}}"""


def _wgmma(columns: int, type: str) -> str:
    count = columns // 2
    registers = ", ".join(f"%{n}" for n in range(count))
    sums = [f'"+f"(d[{n}])' for n in range(count)]
    lines = [", ".join(sums[n : n + 8]) for n in range(0, count, 8)]
    rows = [", ".join(f"%{i}" for i in range(n, min(n + _PER_LINE, count))) for n in range(0, count, _PER_LINE)]
    assert ", ".join(rows) == registers
    shown = ', "\n                 "'.join(rows)
    outputs = ",\n                   ".join(lines)
    return f"""// d += a * b by four warps: 64 rows of a, {columns} of b, DEPTH columns of both, swizzled as tile_of says
template <int DEPTH> $void wgmma_n{columns}_{type}(float* d, const void* a, const void* b) {{
  const unsigned long long rows = tile_of(a), columns = tile_of(b);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < DEPTH / {GROUP_DEPTH}; ++k)
    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{_TYPES[type]}.{_TYPES[type]} "
                 "{{{shown}}}, "
                 "%{count}, %{count + 1}, 1, 1, 1, 0, 0;"
                 : {outputs}
                 : "l"(rows + 2 * k), "l"(columns + 2 * k));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}"""


GROUP_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "TensorMap": (
        """// how a tensor lies in memory, and what a box of it is: the driver's cuTensorMapEncodeTiled fills it
struct __align__(64) TensorMap {
  unsigned long long words[16];
};""",
        (),
    ),
    **{f"tensor_copy_{n}": (_tensor_copy(n), ("shared_address", "TensorMap")) for n in range(1, 6)},
    "arrive": (
        """void arrive(long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier)) : "memory");
}""",
        ("shared_address",),
    ),
    "tile_of": (
        """// a tile as warp groups are given it: its address, 1024 bytes from 8 rows to the next, 128-byte swizzle
unsigned long long tile_of(const void* start) {
  return (unsigned long long)((shared_address(start) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}""",
        ("shared_address",),
    ),
    **{f"wgmma_n{n}_{type}": (_wgmma(n, type), ("tile_of",)) for n in range(8, 257, 8) for type in _TYPES},
    "await_wgmma": (
        """// until at most PENDING products of this warp group are under way
template <int PENDING> $void await_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}""",
        (),
    ),
}
"""Name -> (text, the functions it calls)."""
