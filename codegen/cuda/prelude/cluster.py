"""These functions wrap barriers of clusters, and loads from distributed shared memory (sm_90 and later)."""

from .device_function import DeviceFunction

CLUSTER: dict[str, DeviceFunction] = {
    "cluster_load_wait": DeviceFunction(
        """// waits for the loads that the value was computed from: this use of it stays ahead of all later barriers
template <typename T> $void cluster_load_wait(T value) {
  const unsigned rare = value == (T)-77777;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p membar.cta; }" :: "r"(rare) : "memory");
}"""
    ),
    "cluster_sync_relaxed": DeviceFunction(
        """// no CTA of the cluster goes on, or ends, before all are here; nobody waits for what they stored
void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}"""
    ),
    "cluster_sync_shared": DeviceFunction(
        """// stores to shared memory are visible to the cluster afterwards; stores to global memory are not waited for
void cluster_sync_shared() {
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}"""
    ),
    "cluster_sync": DeviceFunction(
        """void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}"""
    ),
    "ld_shared_cluster": DeviceFunction(
        """// loads from the same address in the shared memory of another CTA of the cluster
uint4 ld_shared_cluster(const uint4* from, unsigned cta) {
  uint4 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [a]; }"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(smem_address(from)), "r"(cta) : "memory");
  return x;
}
$uint2 ld_shared_cluster(const uint2* from, unsigned cta) {
  uint2 x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %2, %3; ld.shared::cluster.v2.u32 {%0, %1}, [a]; }"
               : "=r"(x.x), "=r"(x.y) : "r"(smem_address(from)), "r"(cta) : "memory");
  return x;
}
$unsigned ld_shared_cluster(const unsigned* from, unsigned cta) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u32 %0, [a]; }"
               : "=r"(x) : "r"(smem_address(from)), "r"(cta) : "memory");
  return x;
}
$unsigned short ld_shared_cluster(const unsigned short* from, unsigned cta) {
  unsigned short x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u16 %0, [a]; }"
               : "=h"(x) : "r"(smem_address(from)), "r"(cta) : "memory");
  return x;
}
$unsigned char ld_shared_cluster(const unsigned char* from, unsigned cta) {
  unsigned x;
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u8 %0, [a]; }"
               : "=r"(x) : "r"(smem_address(from)), "r"(cta) : "memory");
  return (unsigned char)x;
}""",
        ("smem_address",),
    ),
}
"""It maps names to functions."""
