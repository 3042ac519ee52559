"""These functions reduce an element in memory, whatever other threads do with it at once (``red``)."""

from .device_function import DeviceFunction


def _extreme(name: str, same: str, other: str) -> str:
    """Return overloads for the larger or the smaller value. Bits of floats without a sign are in the order of ``int``;
    those of floats with one, as ``unsigned``, are in the opposite order and above all others."""
    return f"""// NaN wins. {same} of int is right where the sign is clear, and {other} of unsigned where it is set
void {name}(int* to, int x) {{ {same}(to, x); }}
$void {name}(long long* to, long long x) {{ {same}(to, x); }}
$void {name}(float* to, float x) {{
  const int bits = x != x ? {"0x7fffffff" if same == "atomicMax" else "-1"} : __float_as_int(x);
  if (bits >= 0) {same}(reinterpret_cast<int*>(to), bits);
  else {other}(reinterpret_cast<unsigned*>(to), (unsigned)bits);
}}"""


ATOMIC: dict[str, DeviceFunction] = {
    "atomic_add": DeviceFunction("""void atomic_add(int* to, int x) { atomicAdd(to, x); }
$void atomic_add(long long* to, long long x) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), (unsigned long long)x);
}"""),
    "atomic_add_halves": DeviceFunction(
        """// shared memory adds no 64 bits at once: of the sums of the lower halves, each that wraps around carries one
void atomic_add_halves(long long* to, long long x) {
  const unsigned low = (unsigned)x;
  const unsigned carry = atomicAdd(reinterpret_cast<unsigned*>(to), low) > ~low;
  atomicAdd(reinterpret_cast<unsigned*>(to) + 1, (unsigned)(x >> 32) + carry);
}"""
    ),
    "atomic_max": DeviceFunction(_extreme("atomic_max", "atomicMax", "atomicMin")),
    "atomic_min": DeviceFunction(_extreme("atomic_min", "atomicMin", "atomicMax")),
}
"""Name -> function."""
