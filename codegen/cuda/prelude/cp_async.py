"""These functions wrap the asynchronous copies of single threads (``cp.async``, sm_80 and later)."""

from .device_function import DeviceFunction

CP_ASYNC: dict[str, DeviceFunction] = {
    "cp_async_part": DeviceFunction(
        """// copies the first `present` of BYTES bytes from global to shared memory, and writes zeros behind them
template <int BYTES> $void cp_async_part(void* to, const void* from, int present) {
  const unsigned address = smem_address(to);
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(__cvta_generic_to_global(from)), "r"(present) : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;"
                 :: "r"(address), "l"(__cvta_generic_to_global(from)), "n"(BYTES), "r"(present) : "memory");
}""",
        ("smem_address",),
    ),
    "cp_async": DeviceFunction(
        """// copies BYTES from global to shared memory; writes zeros and reads nothing where the predicate is false
template <int BYTES> $void cp_async(void* to, const void* from, bool predicate = true) {
  cp_async_part<BYTES>(to, from, predicate ? BYTES : 0);
}""",
        ("cp_async_part",),
    ),
    "cp_async_line": DeviceFunction(
        """// as cp_async of 16 bytes; brings the whole cache line into L2, too
void cp_async_line(void* to, const void* from, bool predicate = true) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(smem_address(to)), "l"(__cvta_generic_to_global(from)), "r"(predicate ? 16 : 0) : "memory");
}""",
        ("smem_address",),
    ),
    "cp_async_commit_group": DeviceFunction(
        """void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }"""
    ),
    "cp_async_wait_group": DeviceFunction(
        """// waits until at most PENDING of this thread's groups, the youngest, are still in flight
template <int PENDING> $void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}"""
    ),
}
"""It maps names to functions."""
