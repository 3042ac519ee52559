"""These functions wrap the arrival barriers in shared memory (``mbarrier``, sm_90 and later)."""

from .device_function import DeviceFunction

MBARRIER: dict[str, DeviceFunction] = {
    "mbarrier_init": DeviceFunction(
        """// a phase ends after this many arrivals; the fence shows the barrier to the cluster and to TMA
void mbarrier_init(long long* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(smem_address(barrier)), "r"(count) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}""",
        ("smem_address",),
    ),
    "mbarrier_arrive": DeviceFunction(
        """void mbarrier_arrive(long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(smem_address(barrier)) : "memory");
}""",
        ("smem_address",),
    ),
    "mbarrier_arrive_cluster": DeviceFunction(
        """// arrives at the same barrier of another CTA of the cluster, which may then overwrite what this thread read
void mbarrier_arrive_cluster(long long* barrier, unsigned cta) {
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %0, %1;"
               " mbarrier.arrive.shared::cluster.b64 _, [a]; }"
               :: "r"(smem_address(barrier)), "r"(cta) : "memory");
}""",
        ("smem_address",),
    ),
    "mbarrier_arrive_expect_tx": DeviceFunction(
        """// arrives, and makes the phase wait for this many bytes of asynchronous copies
void mbarrier_arrive_expect_tx(long long* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(smem_address(barrier)), "r"(bytes) : "memory");
}""",
        ("smem_address",),
    ),
    "mbarrier_wait": DeviceFunction(
        """// waits until the phase of this parity has ended
void mbarrier_wait(long long* barrier, unsigned parity) {
  const unsigned address = smem_address(barrier);
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(address), "r"(parity) : "memory");
}""",
        ("smem_address",),
    ),
}
"""It maps names to functions."""
