"""Functions of the prelude for copies of boxes of tensors, and arrivals."""

from .device_function import Function

RANKS = range(1, 6)


def _coordinates(rank: int, first: int) -> tuple[str, str, str]:
    """(parameters, their places in an instruction from ``first`` on, operands) of the coordinates of a box, from the
    innermost on, as the hardware counts them."""
    names = [f"i{n}" for n in range(rank)]
    return (
        ", ".join(f"int {name}" for name in names),
        ", ".join(f"%{first + n}" for n in range(rank)),
        "".join(f', "r"({name})' for name in names),
    )


def _tma_load(rank: int) -> str:
    given, places, operands = _coordinates(rank, 3)
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    return f"""// starts the copy, whose bytes the barrier expects; ONCE: caches need not keep it
template <bool ONCE> $void tensor_copy_{rank}(void* to, const TensorMap* map, long long* barrier, {given}) {{
  if (ONCE)
    asm volatile("{copy}.L2::cache_hint"
                 " [%0], [%1, {{{places}}}], [%2], %{3 + rank};"
                 :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)){operands}, "l"(read_once())
                 : "memory");
  else
    asm volatile("{copy}"
                 " [%0], [%1, {{{places}}}], [%2];"
                 :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)){operands} : "memory");
}}"""


def _tensor_multicast(rank: int) -> str:
    given, places, operands = _coordinates(rank, 4)
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    return f"""// the same to the blocks of the cluster whose bits are set
template <bool ONCE> $void tensor_multicast_{rank}(void* to, const TensorMap* map, long long* barrier,
                                                   unsigned short blocks, {given}) {{
  if (ONCE)
    asm volatile("{copy}.L2::cache_hint"
                 " [%0], [%1, {{{places}}}], [%2], %3, %{4 + rank};"
                 :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "h"(blocks){operands},
                    "l"(read_once()) : "memory");
  else
    asm volatile("{copy}"
                 " [%0], [%1, {{{places}}}], [%2], %3;"
                 :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "h"(blocks){operands}
                 : "memory");
}}"""


def _tensor_prefetch(rank: int) -> str:
    given, places, operands = _coordinates(rank, 1)
    return f"""// into the cache in front of memory; what earlier launches still write there is seen, too
void tensor_prefetch_{rank}(const TensorMap* map, {given}) {{
  asm volatile("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [%0, {{{places}}}];"
               :: "l"(map){operands} : "memory");
}}"""


def _tensor_store(rank: int) -> str:
    given, places, operands = _coordinates(rank, 2)
    store = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
    return f"""// starts the copy from shared memory; ONCE: caches need not keep it
template <bool ONCE> $void tensor_store_{rank}(const void* from, const TensorMap* map, {given}) {{
  if (ONCE)
    asm volatile("{store}.L2::cache_hint [%1, {{{places}}}], [%0], %{2 + rank};"
                 :: "r"(shared_address(from)), "l"(map){operands}, "l"(read_once()) : "memory");
  else
    asm volatile("{store} [%1, {{{places}}}], [%0];"
                 :: "r"(shared_address(from)), "l"(map){operands} : "memory");
}}"""


_NEEDS = ("shared_address", "TensorMap", "read_once")

TENSORS: dict[str, Function] = {
    "TensorMap": Function(
        """// how a tensor lies in memory, and what a box of it is: the driver's cuTensorMapEncodeTiled fills it
struct __align__(64) TensorMap {
  unsigned long long words[16];
};"""
    ),
    "prefetch_map": Function(
        """void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}""",
        ("TensorMap",),
    ),
    "read_once": Function(
        """// how caches treat what is touched once: it leaves first
unsigned long long read_once() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}"""
    ),
    **{f"tensor_copy_{n}": Function(_tma_load(n), _NEEDS) for n in RANKS},
    **{f"tensor_multicast_{n}": Function(_tensor_multicast(n), _NEEDS) for n in RANKS},
    **{f"tensor_prefetch_{n}": Function(_tensor_prefetch(n), ("TensorMap",)) for n in RANKS},
    **{f"tensor_store_{n}": Function(_tensor_store(n), _NEEDS) for n in RANKS},
    "tma_store_commit": Function(
        """void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }"""
    ),
    "tma_store_wait": Function(
        """// until what all but PENDING groups of this thread store has been read
template <int PENDING> $void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}"""
    ),
    "async_proxy_fence": Function(
        """// what this thread wrote to shared memory, matrix units and copy engine see
void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }"""
    ),
    "arrive": Function(
        """void arrive(long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier)) : "memory");
}""",
        ("shared_address",),
    ),
    "arrive_at": Function(
        """// at the barrier of another block of the cluster, which may then overwrite what this thread read
void arrive_at(long long* barrier, unsigned block) {
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %0, %1;"
               " mbarrier.arrive.shared::cluster.b64 _, [a]; }"
               :: "r"(shared_address(barrier)), "r"(block) : "memory");
}""",
        ("shared_address",),
    ),
    "mbarrier_arrive_expect_tx": Function(
        """// arrives, and lets the phase wait for so many bytes of copies
void mbarrier_arrive_expect_tx(long long* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}""",
        ("shared_address",),
    ),
}
"""Name -> function."""
