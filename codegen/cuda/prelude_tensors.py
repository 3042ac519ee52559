"""Functions of the prelude for copies of boxes of tensors, and arrivals."""

from .device_function import Function


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


TENSORS: dict[str, Function] = {
    "TensorMap": Function(
        """// how a tensor lies in memory, and what a box of it is: the driver's cuTensorMapEncodeTiled fills it
struct __align__(64) TensorMap {
  unsigned long long words[16];
};"""
    ),
    **{f"tensor_copy_{n}": Function(_tensor_copy(n), ("shared_address", "TensorMap")) for n in range(1, 6)},
    "arrive": Function(
        """void arrive(long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier)) : "memory");
}""",
        ("shared_address",),
    ),
}
"""Name -> function."""
