"""These functions give addresses of shared memory, and order ordinary accesses to it with the asynchronous proxy."""

from .device_function import DeviceFunction

SHARED_MEMORY: dict[str, DeviceFunction] = {
    "opaque": DeviceFunction(
        """// the same number, of which the compiler knows nothing: constants that an instruction could add stay outside
int opaque(int number) { asm("" : "+r"(number)); return number; }"""
    ),
    "smem_address": DeviceFunction(
        """unsigned smem_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }"""
    ),
    "fence_proxy_async": DeviceFunction(
        """// makes what this thread wrote to shared memory visible to TMA and wgmma
void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }"""
    ),
}
"""It maps names to functions."""
