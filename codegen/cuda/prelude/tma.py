"""These functions wrap the tensor memory accelerator (TMA, sm_90 and later): bulk copies, boxes of tensors, tensor
maps.

A box is copied by one thread. ``tma_load_2d`` and its likes take the coordinates of the box from the innermost
dimension on, as PTX does, and a tensor map, which the host encodes (``cuTensorMapEncodeTiled``).
"""

from .device_function import DeviceFunction

RANKS = range(1, 6)
"""A tensor map may have this many dimensions."""
IM2COL_RANKS = range(3, 6)
"""One for im2col may have this many: images, one to three spatial dimensions, channels."""


def _coordinates(rank: int, first: int) -> tuple[str, str, str]:
    """Return the coordinates of a box in three forms: as parameters of a function, as operands of an instruction that
    are numbered from ``first`` on, and as constraints of inline assembly."""
    names = [f"c{n}" for n in range(rank)]
    return (
        ", ".join(f"int {name}" for name in names),
        ", ".join(f"%{first + n}" for n in range(rank)),
        "".join(f', "r"({name})' for name in names),
    )


def _tma_load(rank: int) -> str:
    parameters, operands, constraints = _coordinates(rank, 3)
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    return f"""// starts to copy a box from global to shared memory; its bytes complete the transaction of the barrier
template <bool EVICT_FIRST> $void tma_load_{rank}d(void* to, const TensorMap* map, long long* barrier, {parameters}) {{
  if (EVICT_FIRST)
    asm volatile("{copy}.L2::cache_hint"
                 " [%0], [%1, {{{operands}}}], [%2], %{3 + rank};"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)){constraints}, "l"(l2_evict_first())
                 : "memory");
  else
    asm volatile("{copy}"
                 " [%0], [%1, {{{operands}}}], [%2];"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)){constraints} : "memory");
}}"""


def _tma_load_multicast(rank: int) -> str:
    parameters, operands, constraints = _coordinates(rank, 4)
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    return f"""// the same to each CTA of the cluster whose bit is set: at the same address, with the same barrier
template <bool EVICT_FIRST> $void tma_load_multicast_{rank}d(void* to, const TensorMap* map, long long* barrier,
                                                            unsigned short cta_mask, {parameters}) {{
  if (EVICT_FIRST)
    asm volatile("{copy}.L2::cache_hint"
                 " [%0], [%1, {{{operands}}}], [%2], %3, %{4 + rank};"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "h"(cta_mask){constraints},
                    "l"(l2_evict_first()) : "memory");
  else
    asm volatile("{copy}"
                 " [%0], [%1, {{{operands}}}], [%2], %3;"
                 :: "r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "h"(cta_mask){constraints}
                 : "memory");
}}"""


def _tma_prefetch(rank: int) -> str:
    parameters, operands, constraints = _coordinates(rank, 1)
    return f"""// brings a box into L2, where what earlier launches still write is seen, too
void tma_prefetch_{rank}d(const TensorMap* map, {parameters}) {{
  asm volatile("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [%0, {{{operands}}}];"
               :: "l"(map){constraints} : "memory");
}}"""


def _tma_store(rank: int) -> str:
    parameters, operands, constraints = _coordinates(rank, 2)
    store = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
    return f"""// starts to copy a box from shared to global memory
template <bool EVICT_FIRST> $void tma_store_{rank}d(const void* from, const TensorMap* map, {parameters}) {{
  if (EVICT_FIRST)
    asm volatile("{store}.L2::cache_hint [%1, {{{operands}}}], [%0], %{2 + rank};"
                 :: "r"(smem_address(from)), "l"(map){constraints}, "l"(l2_evict_first()) : "memory");
  else
    asm volatile("{store} [%1, {{{operands}}}], [%0];"
                 :: "r"(smem_address(from)), "l"(map){constraints} : "memory");
}}"""


def _offsets(rank: int, first: int) -> tuple[str, str, str]:
    """Return the offsets of an im2col box, in the forms of ``_coordinates``."""
    names = [f"o{n}" for n in range(rank - 2)]
    return (
        ", ".join(f"unsigned short {name}" for name in names),
        ", ".join(f"%{first + n}" for n in range(rank - 2)),
        "".join(f', "h"({name})' for name in names),
    )


def _tma_load_im2col(rank: int, multicast: bool) -> str:
    first = 4 if multicast else 3
    parameters, operands, constraints = _coordinates(rank, first)
    offset_parameters, offsets, offset_constraints = _offsets(rank, first + rank)
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
    name, mask_parameter, mask, mask_constraint = f"tma_load_im2col_{rank}d", "", "", ""
    what = "starts to copy pixels at the positions of a window, each offset by a place of the window"
    if multicast:
        copy, name = f"{copy}.multicast::cluster", f"tma_load_multicast_im2col_{rank}d"
        mask_parameter, mask, mask_constraint = "unsigned short cta_mask, ", ", %3", ', "h"(cta_mask)'
        what = "the same to each CTA of the cluster whose bit is set: at the same address, with the same barrier"
    given = f'"r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)){mask_constraint}{constraints}'
    return f"""// {what}
template <bool EVICT_FIRST> $void {name}(void* to, const TensorMap* map, long long* barrier,
    {mask_parameter}{parameters}, {offset_parameters}) {{
  if (EVICT_FIRST)
    asm volatile("{copy}.L2::cache_hint"
                 " [%0], [%1, {{{operands}}}], [%2], {{{offsets}}}{mask}, %{first + 2 * rank - 2};"
                 :: {given}{offset_constraints},
                    "l"(l2_evict_first()) : "memory");
  else
    asm volatile("{copy}"
                 " [%0], [%1, {{{operands}}}], [%2], {{{offsets}}}{mask};"
                 :: {given}{offset_constraints}
                 : "memory");
}}"""


def _tma_prefetch_im2col(rank: int) -> str:
    parameters, operands, constraints = _coordinates(rank, 1)
    offset_parameters, offsets, offset_constraints = _offsets(rank, 1 + rank)
    return f"""// brings pixels at the positions of a window into L2
void tma_prefetch_im2col_{rank}d(const TensorMap* map, {parameters}, {offset_parameters}) {{
  asm volatile("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.im2col [%0, {{{operands}}}], {{{offsets}}};"
               :: "l"(map){constraints}{offset_constraints} : "memory");
}}"""


_NEEDS = ("smem_address", "TensorMap", "l2_evict_first")

TMA: dict[str, DeviceFunction] = {
    "TensorMap": DeviceFunction(
        """// layout of a tensor in global memory and the shape of a box, as cuTensorMapEncodeTiled encodes them
struct __align__(64) TensorMap {
  unsigned long long words[16];
};"""
    ),
    "prefetch_tensormap": DeviceFunction(
        """void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}""",
        ("TensorMap",),
    ),
    "l2_evict_first": DeviceFunction(
        """// a cache policy for data that is touched once: L2 evicts it first
unsigned long long l2_evict_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}"""
    ),
    "cp_async_bulk": DeviceFunction(
        """// arrives at the barrier expecting the bytes, and starts to copy them from global to shared memory
void cp_async_bulk(void* to, const void* from, unsigned bytes, long long* barrier) {
  const unsigned target = smem_address(to), mbarrier = smem_address(barrier);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(mbarrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(target), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(mbarrier) : "memory");
}""",
        ("smem_address",),
    ),
    **{f"tma_load_{n}d": DeviceFunction(_tma_load(n), _NEEDS) for n in RANKS},
    **{f"tma_load_multicast_{n}d": DeviceFunction(_tma_load_multicast(n), _NEEDS) for n in RANKS},
    **{f"tma_load_im2col_{n}d": DeviceFunction(_tma_load_im2col(n, False), _NEEDS) for n in IM2COL_RANKS},
    **{f"tma_load_multicast_im2col_{n}d": DeviceFunction(_tma_load_im2col(n, True), _NEEDS) for n in IM2COL_RANKS},
    **{f"tma_prefetch_im2col_{n}d": DeviceFunction(_tma_prefetch_im2col(n), ("TensorMap",)) for n in IM2COL_RANKS},
    **{f"tma_prefetch_{n}d": DeviceFunction(_tma_prefetch(n), ("TensorMap",)) for n in RANKS},
    **{f"tma_store_{n}d": DeviceFunction(_tma_store(n), _NEEDS) for n in RANKS},
    "tma_store_commit_group": DeviceFunction(
        """void tma_store_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }"""
    ),
    "tma_store_wait_group_read": DeviceFunction(
        """// waits until all but the youngest PENDING groups of this thread have read their sources
template <int PENDING> $void tma_store_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}"""
    ),
}
"""It maps names to functions."""
