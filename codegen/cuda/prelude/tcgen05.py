"""These functions wrap what came with data-center Blackwell (sm_100a): tensor memory and ``tcgen05.mma``.

Fences stand in the functions. What a thread knows by a barrier or an mbarrier holds for ``tcgen05`` operations behind
``tcgen05.fence::after_thread_sync``, and what others shall know of these is ahead of ``::before_thread_sync`` (PTX ISA,
"tcgen05 memory consistency model"). A commit has the latter in it.
"""

from ....ir.gpu.tcgen05 import BLOCK_SCALED_ATOMS, MOST_MMA_N, TCGEN05_ATOMS, BlockScaledAtom
from .device_function import DeviceFunction

LOADED_COLUMNS = tuple(8 << n for n in range((MOST_MMA_N // 8).bit_length()))
"""How many columns one ``tcgen05.ld`` of the shape ``.16x256b`` loads."""


def mma_name(kind: str) -> str:
    """Return the name of the function for one kind of ``tcgen05.mma``."""
    return f"tcgen05_mma_{kind}"


def load_name(columns: int, is_float: bool) -> str:
    """Return the name of the function that loads so many columns."""
    return f"tcgen05_ld_{columns}" + ("" if is_float else "_integers")


def _mma(kind: str, step: int) -> str:
    return f"""// starts d += a * b, or d = a * b, in tensor memory; descriptors are of the first {step} of K places
template <int K, bool MN_MAJOR_A, bool MN_MAJOR_B> $void {mma_name(kind)}(
    unsigned d, unsigned long long descriptor_a, unsigned long long descriptor_b, unsigned instruction,
    bool accumulate = true) {{
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#pragma unroll
  for (int k = 0; k < K / {step}; ++k)
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %4, 0; "
                 "tcgen05.mma.cta_group::1.kind::{kind} [%0], %1, %2, %3, p; }}"
                 :: "r"(d), "l"(descriptor_a + (MN_MAJOR_A ? 128 : 2) * k),
                    "l"(descriptor_b + (MN_MAJOR_B ? 128 : 2) * k), "r"(instruction),
                    "r"(k > 0 || accumulate ? 1 : 0) : "memory");
}}"""


def _load(columns: int, is_float: bool) -> str:
    count, type, letter = columns // 2, *(("float", "f") if is_float else ("int", "r"))
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"={letter}"(d[{i}])' for i in range(count))
    return f"""// loads {columns} columns of 16 lanes, in the quarter of this warp
void {load_name(columns, is_float)}({type}* d, unsigned address) {{
  address += threadIdx.x / 32 % 4 << 21;
  asm volatile("tcgen05.fence::after_thread_sync; "
               "tcgen05.ld.sync.aligned.16x256b.x{columns // 8}.b32 {{{registers}}}, [%{count}]; "
               "tcgen05.wait::ld.sync.aligned; tcgen05.fence::before_thread_sync;"
               : {outputs} : "r"(address) : "memory");
}}"""


def block_scaled_name(kind: str) -> str:
    """Return the name of the function for one block-scaled kind."""
    return f"tcgen05_mma_{kind}"


def _block_scaled(atom: BlockScaledAtom) -> str:
    scales = atom.scales
    return f"""// starts d += (a * scales) * (b * scales), or the product alone; the scales of 4 blocks of k lie in
// A_COLUMNS and B_COLUMNS columns of tensor memory; the instruction names the first one that it takes of each
template <int K, int A_COLUMNS, int B_COLUMNS> $void {block_scaled_name(atom.kind)}(
    unsigned d, unsigned long long descriptor_a, unsigned long long descriptor_b, unsigned instruction,
    unsigned scales_a, unsigned scales_b, bool accumulate = true) {{
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#pragma unroll
  for (int k = 0; k < K / {atom.k}; ++k) {{
    const unsigned first = k * {scales} % 4;
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %6, 0; "
                 "tcgen05.mma.cta_group::1.kind::{atom.kind}.block_scale.scale_vec::{atom.vector} "
                 "[%0], %1, %2, %3, [%4], [%5], p; }}"
                 :: "r"(d), "l"(descriptor_a + 2 * k), "l"(descriptor_b + 2 * k),
                    "r"(instruction | first << 29 | first << 4), "r"(scales_a + k * {scales} / 4 * A_COLUMNS),
                    "r"(scales_b + k * {scales} / 4 * B_COLUMNS), "r"(k > 0 || accumulate ? 1 : 0) : "memory");
  }}
}}"""


_STEPS = {atom.kind: atom.k for atom in TCGEN05_ATOMS.values()}

TCGEN05: dict[str, DeviceFunction] = {
    "tensor_memory_allocate": DeviceFunction(
        """// the first warp allocates columns of tensor memory, and all threads of the CTA learn where they begin
template <int COLUMNS> $unsigned tensor_memory_allocate(int* address) {
  if (threadIdx.x < 32) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
                 :: "r"(smem_address(address)), "n"(COLUMNS) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  }
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  return *address;
}""",
        ("smem_address",),
    ),
    "tensor_memory_deallocate": DeviceFunction(
        """template <int COLUMNS> $void tensor_memory_deallocate(unsigned address) {
  __syncthreads();
  if (threadIdx.x < 32) {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(address), "n"(COLUMNS) : "memory");
  }
}"""
    ),
    "tcgen05_descriptor": DeviceFunction(
        """// describes a matrix in shared memory; the layout is all of its descriptor but the address
unsigned long long tcgen05_descriptor(const void* tile, unsigned long long layout) {
  return (smem_address(tile) & 0x3ffff) >> 4 | layout;
}""",
        ("smem_address",),
    ),
    **{mma_name(kind): DeviceFunction(_mma(kind, step)) for kind, step in _STEPS.items()},
    **{block_scaled_name(atom.kind): DeviceFunction(_block_scaled(atom)) for atom in BLOCK_SCALED_ATOMS.values()},
    "tcgen05_cp": DeviceFunction(
        """// starts to copy chunks of 512 bytes of scales, each to 4 columns, for all four quarters of the lanes
template <int CHUNKS> $void tcgen05_cp(unsigned address, unsigned long long descriptor) {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#pragma unroll
  for (int n = 0; n < CHUNKS; ++n)
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;"
                 :: "r"(address + 4 * n), "l"(descriptor + 32 * n) : "memory");
}"""
    ),
    "tcgen05_commit": DeviceFunction(
        """// arrives at the barrier as soon as all tcgen05.mma of this thread are done
void tcgen05_commit(long long* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
               :: "r"(smem_address(barrier)) : "memory");
}""",
        ("smem_address",),
    ),
    "tcgen05_commit_multicast": DeviceFunction(
        """// the same for this barrier of each CTA whose bit is set
void tcgen05_commit_multicast(long long* barrier, unsigned ctas) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
               :: "r"(smem_address(barrier)), "h"((unsigned short)ctas) : "memory");
}""",
        ("smem_address",),
    ),
    **{
        load_name(columns, is_float): DeviceFunction(_load(columns, is_float))
        for columns in LOADED_COLUMNS
        for is_float in (True, False)
    },
}
"""It maps names to functions."""
