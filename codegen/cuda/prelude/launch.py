"""These functions wrap programmatic dependent launch (``griddepcontrol``, sm_90 and later) and the barrier of a
cooperative launch, and give a warp's index."""

from .device_function import DeviceFunction

LAUNCH: dict[str, DeviceFunction] = {
    "griddepcontrol_launch_dependents": DeviceFunction(
        """// lets the next kernel in the stream start its blocks while this one still runs
void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}"""
    ),
    "griddepcontrol_wait": DeviceFunction(
        """// waits until earlier kernels have ended and all that they wrote can be seen
void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}"""
    ),
    "grid_barrier": DeviceFunction(
        """// the barrier that the driver keeps for a cooperative launch, where cooperative_groups finds it, too: its
// highest bit changes when all blocks have arrived
unsigned* grid_barrier() {
  unsigned low, high;
  asm("mov.u32 %0, %%envreg2;" : "=r"(low));
  asm("mov.u32 %0, %%envreg1;" : "=r"(high));
  return (unsigned*)((unsigned long long)high << 32 | low) + 1;
}"""
    ),
    "grid_barrier_arrive": DeviceFunction(
        """// gives thread 0 what the barrier was before
unsigned grid_barrier_arrive() {
  unsigned before = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned blocks = gridDim.x * gridDim.y * gridDim.z, number = blockIdx.x + blockIdx.y + blockIdx.z;
    const unsigned added = number ? 1u : 0x80000001u - blocks;
    asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(grid_barrier()), "r"(added) : "memory");
  }
  return before;
}""",
        ("grid_barrier",),
    ),
    "grid_barrier_wait": DeviceFunction(
        """// what all blocks wrote before they arrived can be seen afterwards
void grid_barrier_wait(unsigned before) {
  if (threadIdx.x == 0) {
    unsigned now;
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(grid_barrier()) : "memory");
    while (!((before ^ now) >> 31));
  }
  __syncthreads();
}""",
        ("grid_barrier",),
    ),
    "flagged_store": DeviceFunction(
        """// stores 32 bits of a value at a time, each with a flag above them
template <typename T> $void flagged_store(long long* words, T value) {
  union { T value; unsigned bits[sizeof(T) / 4]; } held = {value};
  #pragma unroll
  for (int i = 0; i < sizeof(T) / 4; ++i)
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" :: "l"(words + i), "l"(1ull << 32 | held.bits[i]) : "memory");
}"""
    ),
    "flagged_peek": DeviceFunction(
        """// loads words as they are
template <int WORDS> $void flagged_peek(long long* target, const long long* words) {
  #pragma unroll
  for (int i = 0; i < WORDS; ++i)
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(target[i]) : "l"(words + i) : "memory");
}"""
    ),
    "flagged_load": DeviceFunction(
        """// loads the words of a value until all of them have flags, beginning with what was seen of them before
template <typename T> $void flagged_load(T* target, const long long* words, const long long* peeked) {
  union { T value; unsigned bits[sizeof(T) / 4]; } held;
  #pragma unroll
  for (int i = 0; i < sizeof(T) / 4; ++i) {
    long long word = peeked[i];
    while (!(word >> 32)) flagged_peek<1>(&word, words + i);
    held.bits[i] = (unsigned)word;
  }
  *target = held.value;
}
template <typename T> $void flagged_load(T* target, const long long* words) {
  const long long none[sizeof(T) / 4] = {};
  flagged_load(target, words, none);
}""",
        ("flagged_peek",),
    ),
    "warp_index": DeviceFunction(
        """// the warp's index in its block; the shuffle tells the compiler that it is uniform in the warp
int warp_index() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }"""
    ),
}
"""It maps names to functions."""
