"""These functions wrap programmatic dependent launch (``griddepcontrol``, sm_90 and later) and give a warp's index."""

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
    "warp_index": DeviceFunction(
        """// the warp's index in its block; the shuffle tells the compiler that it is uniform in the warp
int warp_index() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }"""
    ),
}
"""It maps names to functions."""
